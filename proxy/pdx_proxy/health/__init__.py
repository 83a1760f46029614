"""Health of endpoints: their state, ejection, warm-up, and what engines report on their metrics pages.

Pure: `registry` (the state), `ejection` (the policy), `progress`. `endpoint_manager` performs what follows from a
change of the state. `warm_up`, `engine_watch`, `health_checks`, `load_poller` and `transfer_share` run tasks.
Imports `engines`, `balancing`, `endpoints`, `http`, `telemetry` and `config`.
"""
