"""The PDDeployment, its names and the KV connectors, which operator, gateway, simulator and CLI share.

Packages, each of which imports only those after it: render, spec, rules, connectors; then settings and the top-level
modules. Only the package kube, which no other one imports, performs I/O.
"""
