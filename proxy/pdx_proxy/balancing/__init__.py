"""The choice of engines: load, policies, and what is counted about choices.

`policies`, `pick`, `slow_start` and `load_reports` are pure.
Imports `endpoints`, `payload`, `http`, `telemetry` and `config`.
"""
