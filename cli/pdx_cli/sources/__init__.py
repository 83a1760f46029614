"""Reads gateways, engines and the API server, and turns the answers into one frozen observation or sample.

The only package that queries them for `pdx doctor` and `pdx top`. Imports `inputs` and `runs`.
"""
