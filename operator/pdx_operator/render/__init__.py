"""From a spec to manifests of its children. Pure: plain dicts out.

May import `observed`, and of `kube` only `resources`.
"""
