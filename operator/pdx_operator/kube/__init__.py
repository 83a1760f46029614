"""The API server as the operator uses it: requests, watches, the cache of children and Kubernetes Events.

Imports no other package of the operator. `resources` is plain data, the one module that pure packages may import.
"""
