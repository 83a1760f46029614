"""Benchmarks: what PDX costs, measured beside its peers."""
