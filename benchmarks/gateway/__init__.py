"""The cost of the gateway, compared with its peers: `python -m benchmarks.gateway --help`."""
