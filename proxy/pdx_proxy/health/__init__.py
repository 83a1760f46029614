"""Health of endpoints: their state, ejection, warm-up, and what engines report on their metrics pages.

Pure: `registry` (the state), `ejection` (the policy), and what uses the metrics: `engine_loads`, `progress`,
`push_queues`, `transfer_share`. `endpoint_manager` performs what follows from a change of the state. `warm_up`,
`engine_scraper` and `health_checks` run tasks.
Imports `engines`, `balancing`, `endpoints`, `http`, `telemetry` and `config`.
"""
