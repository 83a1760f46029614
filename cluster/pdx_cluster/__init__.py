"""A real one-node Kubernetes for developers and tests, from Kubernetes' own programs. Not part of the wheel.

Imports go downwards: app, node, control_plane, programs, system, errors. It imports no other program of PDX.
"""
