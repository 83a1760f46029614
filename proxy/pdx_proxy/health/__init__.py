"""Health of endpoints: their state, ejection, warm-up, and what engines report on their metrics pages.

Pure: `registry` (the state), `ejection` (the policy), `progress`. `warmup`, `engine_watch`, `health_checks`,
`load_poller` and `transfer_share` run tasks. Imports `engines`, `balancing`, `endpoints`, `http`,
`telemetry` and `config`.
"""
