"""A node that runs containers: its namespaces, programs, images, and pods made of the machine's folders.

Imports `control_plane` (because a node joins a control plane), `programs`, `system` and `errors`.
"""
