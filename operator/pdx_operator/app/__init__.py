"""The operator as a program: command line, kopf, health and metrics endpoints, permissions.

It may import every package of the operator; no other package imports it.
"""
