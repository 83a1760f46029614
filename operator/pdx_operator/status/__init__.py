"""The status of a PDDeployment: diagnosis of pods, problems of writes, conditions. Pure.

May import `plan`, `render` and `observed`, and of `kube` only `resources`.
"""
