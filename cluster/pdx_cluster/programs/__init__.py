"""Finds, builds or installs the programs that a cluster needs.

Imports only `errors`.
"""
