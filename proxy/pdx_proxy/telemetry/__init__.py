"""Counters, the timeline of a request, and the access log. Imports only `config`."""
