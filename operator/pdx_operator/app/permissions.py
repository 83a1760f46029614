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
        "services": _CHILD,
        "serviceaccounts": _CHILD,
        "roles.rbac.authorization.k8s.io": _CHILD,
        "rolebindings.rbac.authorization.k8s.io": _CHILD,
        "poddisruptionbudgets.policy": _CHILD,
        "networkpolicies.networking.k8s.io": _CHILD,
        # RBAC only lets an account grant permissions that it has, and the gateway's Role contains list and watch.
        "pods": ("list", "watch"),
        "pods/log": ("get",),
        "events.events.k8s.io": ("create",),
    }
)
"""Verbs by resource, written as `resource[.group][/subresource]`."""
GRANTED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"pods": ("watch",)})
"""Permissions that the operator only needs to grant them to gateways."""
