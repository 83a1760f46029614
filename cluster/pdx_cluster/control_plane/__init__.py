"""etcd, the API server and its controllers as processes, with their credentials.

Imports `system`.
"""
