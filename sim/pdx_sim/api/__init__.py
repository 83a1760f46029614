"""vLLM's HTTP API: requests, answers, streams, and the violations that a request shows.

Imports transfer, core, faults and settings.
"""
