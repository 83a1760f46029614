"""What the gateway costs, beside its peers: `python -m benchmarks.gateway --help`."""
