"""The choice of engines: load, policies, and what is counted about choices.

`policies`, `pick`, `slow_start`, `load_reports`, `engine_limits` and `leg_limits` are pure. So are `prefill` and
`decode`, except their `balancer`.
Imports `endpoints`, `payload`, `http`, `telemetry` and `config`.
"""
