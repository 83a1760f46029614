"""Connections from clients: the listener, the fast path, the fallback, and the exchange that both give to a handler."""
