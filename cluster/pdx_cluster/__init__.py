"""A real one-node Kubernetes for developers and tests, from Kubernetes' own programs. Not part of the wheel."""
