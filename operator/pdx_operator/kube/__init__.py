"""What the operator keeps of the API server: the cache of objects, the CRD, the Lease and Kubernetes Events.

Imports no other package of the operator. `resources` is plain data, the one module that pure packages may import.
"""
