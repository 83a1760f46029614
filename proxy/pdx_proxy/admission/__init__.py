"""Which requests a worker serves, queues or sheds, the clients' API keys, and the retry budget.

Imports `http`, `telemetry` and `config`; no engine.
"""
