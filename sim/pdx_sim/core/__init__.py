"""The engine's core: KV blocks, leases, sequences, scheduling, counters, timings.

Imports settings and other modules of this package only. What moves KV between engines is behind `core.connector`.
"""
