"""Connections to engines: the pool, one connection with its deadline, the answer, and the failures."""
