"""The API server as every program of PDX uses it: requests, and one list-and-watch loop.

The one package here that does I/O. It imports `kubernetes`, which is large, only to connect. `kinds` is plain data.
"""
