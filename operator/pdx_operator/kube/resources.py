"""The kinds of objects that belong to a PDDeployment, and where the API server keeps them."""

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
    """Applied before the others, which refer to it, or whose pods it serves and guards."""

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Where the API server keeps one object, or all of a namespace, or all of the cluster (None)."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [self.plural, name, subresource]
        return "/".join(part for part in parts if part)


PDDEPLOYMENT: Final = Kind(API_VERSION, KIND, PLURAL)
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")

CHILD_KINDS: Final = (
    Kind("v1", "ServiceAccount", "serviceaccounts", first=True),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles", first=True),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", first=True),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", first=True),
    # Refused while the Role that it names is not there.
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("v1", "Service", "services", first=True),
    DEPLOYMENT,
)
"""What the operator makes."""

KIND_OF: Final = {kind.name: kind for kind in CHILD_KINDS}
