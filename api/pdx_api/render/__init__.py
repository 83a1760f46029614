"""From a spec to command lines: vLLM engines, side services, gateway flags; and the pairing revision. Pure.

Imports spec, connectors and the top-level modules of pdx_api.
"""
