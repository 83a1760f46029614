"""A simulated engine: vLLM's HTTP API and the KV protocols, strictly, with timings and faults and no model."""
