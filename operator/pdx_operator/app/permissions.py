"""The operator's permissions: every verb that it uses on every resource. The chart grants exactly these."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_CHILD: Final = ("create", "delete", "get", "list", "patch", "watch")

ACCESS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "pddeployments.pdx.dev": ("get", "list", "watch"),
        "pddeployments.pdx.dev/status": ("patch",),
        "deployments.apps": _CHILD,
        "replicasets.apps": ("get",),
        "services": _CHILD,
        "serviceaccounts": _CHILD,
        "rolebindings.rbac.authorization.k8s.io": _CHILD,
        "poddisruptionbudgets.policy": _CHILD,
        "networkpolicies.networking.k8s.io": _CHILD,
        "httproutes.gateway.networking.k8s.io": _CHILD,
        "pods": ("list",),
        "pods/log": ("get",),
        "events.events.k8s.io": ("create",),
    }
)
"""Verbs by resource, written as `resource[.group][/subresource]`, in the namespaces of PDDeployments.

In addition it may `bind` the role `names.GATEWAY_ROLE`: a ClusterRole, or in a namespaced install a Role.
"""
OWN_ACCESS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"leases.coordination.k8s.io": ("create", "get", "update")}
)
"""The same, in the operator's own namespace."""
