"""The engines as one process reaches them: connections, legs, probes, and what their failures mean.

Used by the serving side and by the control side. Imports `balancing` (load and slow start, no policy),
`endpoints`, `payload`, `http`, `telemetry` and `config`.
"""
