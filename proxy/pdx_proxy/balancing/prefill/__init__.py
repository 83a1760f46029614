"""The policy ExpectedWait: the backlog, the rate and the prefix cache of each engine, and the choice that follows.

Every module except `balancer` is pure, and imports only `payload`. `balancer` connects them with the gateway.
"""
