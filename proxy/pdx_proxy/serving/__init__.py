"""One client's request from its admission to its last byte: the gateway, its attempts, its answers and the relay.

Imports every package of the data plane; `process` alone imports it.
"""
