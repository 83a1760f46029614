"""The engines as the gateway sees them: endpoints, the immutable snapshot of all of them, and events about them.

Data and pure functions. Imports only `config`.
"""
