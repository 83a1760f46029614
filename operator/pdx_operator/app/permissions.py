"""What the operator may do: every verb it uses, for every resource. The chart grants exactly this."""

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
        # Kubernetes lets nobody give away what he may not do himself, and the gateway's Role holds list and watch.
        "pods": ("list", "watch"),
        "pods/log": ("get",),
        "events.events.k8s.io": ("create",),
    }
)
"""Verbs by resource, spelt `resource[.group][/subresource]`."""
GIVEN_AWAY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"pods": ("watch",)})
"""Which of them the operator holds only because gateways need them."""
