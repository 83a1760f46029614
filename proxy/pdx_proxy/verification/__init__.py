"""Verification: transfer probes through each pair show whether KV moves, and the findings are kept here.

Pure: `record`, `schedule` (which pairs are due), `verdict` (what an answer proves), `diagnosis` (the likely cause).
`attempt` sends one transfer probe, `prober` runs them all. Imports `engines`, `endpoints`, `http` and `telemetry`.
"""
