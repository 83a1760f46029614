"""The kinds of objects that PDX reads and writes. Plain data."""

from dataclasses import dataclass
from typing import Final

from pdx_api.names import API_VERSION, KIND, PLURAL


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
KIND_OF: Final = {kind.name: kind for kind in (*CHILD_KINDS, *OPTIONAL_KINDS)}
