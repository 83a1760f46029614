"""The gateway's permissions in the cluster: a ServiceAccount, and a RoleBinding to the chart's role."""

from enum import StrEnum
from typing import Final

from pdx_api.names import GATEWAY_ROLE, gateway_name
from pdx_operator.render.objects import Manifest, Owner, gateway_labels, metadata

_RBAC: Final = "rbac.authorization.k8s.io"


class RoleKind(StrEnum):
    """The kind of the chart's role for gateways."""

    CLUSTER_ROLE = "ClusterRole"
    ROLE = "Role"
    """In namespaced installs."""


def binding_names(gateway: str) -> tuple[str, ...]:
    """The possible names of a gateway's binding to the chart's role."""
    return tuple(f"{gateway}-{kind.lower()}" for kind in RoleKind)


def gateway_rbac(owner: Owner, role: RoleKind | None) -> tuple[Manifest, ...]:
    """The gateway may list and watch the pods of its namespace, and nothing else.

    `role` is the kind of the chart's role; None renders a Role, for manifests that are applied without the chart.
    """
    name, labels = gateway_name(owner.name), gateway_labels(owner)
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(owner, name, labels),
        # The gateway's pods mount the token; other pods that use the account do not.
        "automountServiceAccountToken": False,
    }
    if role is not None:
        # The roleRef of a binding never changes, so another role needs another binding.
        return account, _binding(owner, f"{name}-{role.lower()}", role, GATEWAY_ROLE)
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    own = {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata(owner, name, labels), "rules": rules}
    return account, own, _binding(owner, name, RoleKind.ROLE, name)


def _binding(owner: Owner, name: str, kind: RoleKind, role: str) -> Manifest:
    account = {"kind": "ServiceAccount", "name": gateway_name(owner.name), "namespace": owner.namespace}
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(owner, name, gateway_labels(owner)),
        "roleRef": {"apiGroup": _RBAC, "kind": str(kind), "name": role},
        "subjects": [account],
    }
