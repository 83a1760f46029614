"""Benchmarks: the cost of PDX, compared with its peers."""
