"""The policy LeastITL, and, with an SLO, the choice of the engine that prefills.

Both use the batch and the speed of each decode engine or aggregated engine.

Every module except `balancer` is pure. `balancer` connects them with the gateway.
"""
