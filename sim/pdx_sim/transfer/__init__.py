"""The KV connectors: NIXL pull and push, Mooncake, a shared directory, and the channels between engines.

Imports only `core`.
"""
