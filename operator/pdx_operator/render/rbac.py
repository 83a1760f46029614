"""The gateway's permissions in the cluster: ServiceAccount, Role and RoleBinding."""

from typing import Final

from pdx_api.names import gateway_name
from pdx_operator.render.objects import Manifest, Owner, gateway_labels, metadata

_RBAC: Final = "rbac.authorization.k8s.io"


def gateway_rbac(owner: Owner) -> tuple[Manifest, ...]:
    """The gateway may list and watch the pods of its namespace, and nothing else."""
    name, labels = gateway_name(owner.name), gateway_labels(owner)
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(owner, name, labels),
        # The gateway's pods mount the token; other pods that use the account do not.
        "automountServiceAccountToken": False,
    }
    role = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": metadata(owner, name, labels),
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
    }
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(owner, name, labels),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }
    return account, role, binding
