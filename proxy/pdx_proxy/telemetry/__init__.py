"""Counters, the timeline of a request, the access log, and traces. Imports only `config`."""
