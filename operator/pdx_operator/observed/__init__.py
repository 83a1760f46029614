"""Frozen records of what the cluster shows: Deployments, pods, engine logs, transfer reports. Pure; decides nothing.

Of the operator it may import `kube.resources` only.
"""
