"""The part that acts: one reconciler for each PDDeployment, which applies plans, inspects pods and writes the status.

It decides nothing about children or conditions: `plan` and `status` do. May import all packages but `app`.
"""
