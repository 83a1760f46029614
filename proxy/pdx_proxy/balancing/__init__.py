"""The choice of engines: load, policies, and what is counted about choices.

`policies`, `pick`, `slow_start`, `load_reports`, `engine_limits`, `leg_limits`, `cache_watch`, `expected_wait`,
`prefill_queue`, `prefill_rate` and `prefix_cache` are pure. `expected_wait` needs no gateway.
Imports `endpoints`, `payload`, `http`, `telemetry` and `config`.
"""
