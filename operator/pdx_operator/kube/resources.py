"""Plain data about Kubernetes objects: the kinds of a PDDeployment's children, and the keys and bodies of objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pdx_api.names import API_VERSION, KIND, PLURAL

Body = Mapping[str, Any]
"""An object of the Kubernetes API as plain mappings and lists."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object in a namespace."""

    api_version: str
    name: str
    plural: str
    first: bool = False
    """Applied before the other kinds, because they refer to it or because it guards their pods."""

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """URL path of one object, of all objects in a namespace, or of all in the cluster (None)."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [self.plural, name, subresource]
        return "/".join(part for part in parts if part)


class Key(NamedTuple):
    """Identifies a PDDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ChildKey(NamedTuple):
    """Identifies a child among the children of one PDDeployment."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One PDDeployment and its children at one moment."""

    body: Body
    children: Mapping[ChildKey, Body]


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event on a PDDeployment."""

    reason: str
    """One word in CamelCase."""
    note: str
    """One sentence."""
    warning: bool = False


PDDEPLOYMENT: Final = Kind(API_VERSION, KIND, PLURAL)
POD: Final = Kind("v1", "Pod", "pods")
REPLICA_SET: Final = Kind("apps/v1", "ReplicaSet", "replicasets")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")

CHILD_KINDS: Final = (
    Kind("v1", "ServiceAccount", "serviceaccounts", first=True),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", first=True),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", first=True),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("v1", "Service", "services", first=True),
    DEPLOYMENT,
)
"""The kinds of children."""
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
OPTIONAL_KINDS: Final = (HTTP_ROUTE,)
"""Further kinds, which a cluster may lack: the Gateway API's CRDs are installed separately."""

OBJECT_BYTES: Final = 256 * 1024
"""Largest PDDeployment that is reconciled. Tenants share the operator's memory."""
UNUSABLE: Final = "pdxUnusable"
"""Key of a cached object that is not kept, because it is too large, too deep or odd: a sentence that explains why."""

KIND_OF: Final = {kind.name: kind for kind in (*CHILD_KINDS, *OPTIONAL_KINDS)}


def controller_of(body: Body) -> Body:
    """The owner reference of an object's controller; empty without one."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((reference for reference in owners if reference.get("controller")), {})


def is_terminating(body: Body) -> bool:
    """Whether the object is being deleted."""
    return bool(body["metadata"].get("deletionTimestamp"))
