"""From a snapshot to the writes that follow: ownership, rollout, pinned templates, drift. Pure.

May import `render` and `observed`, and of `kube` only `resources`.
"""
