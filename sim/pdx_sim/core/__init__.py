"""The engine's core: KV blocks, leases, sequences, scheduling, counters, timings.

Imports settings and other modules of this package only. It calls connectors through the interface in `core.connector`.
"""
