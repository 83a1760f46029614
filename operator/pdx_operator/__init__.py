"""The operator: from PDDeployments to Deployments, Services and policies, and back to their status.

One reconcile goes through the packages in this order: `kube` (cache) -> `plan` -> `controller` (apply) -> `status`.
Imports go down only: app, controller, status, plan, render, observed, kube. Everything from `status` to `observed` is
pure.
"""
