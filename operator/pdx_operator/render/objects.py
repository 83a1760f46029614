"""What every child of a PDDeployment has in common: its name, labels, owner, and words about plain manifests."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.names import API_VERSION, KIND, LABEL_DEPLOYMENT, LABEL_MANAGED_BY, LABEL_ROLE, MANAGED_BY, ROLE_GATEWAY
from pdx_api.spec.types import PDDeployment, Resources

Manifest = dict[str, Any]

DEFAULT_NAMESPACE: Final = "default"
LEAVING_SECONDS: Final = 5
"""How long a pod that is going away still serves, until everybody who sends to it has seen that."""
POD_IP: Final = "POD_IP"
"""Environment variable that holds the pod's own address."""
EXIT_SECONDS: Final = 10
"""What is added to the grace period for what a program does after its last request."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The PDDeployment, as far as its children name it."""

    name: str
    namespace: str
    uid: str | None
    """None outside a cluster: what is only printed has no owner."""


def owner_of(deployment: PDDeployment, uid: str | None) -> Owner:
    """The owner of a deployment's children."""
    return Owner(deployment.metadata.name, deployment.metadata.namespace or DEFAULT_NAMESPACE, uid)


def metadata(
    owner: Owner, name: str, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Manifest:
    """Metadata of a child. Kubernetes collects it when its owner is gone, so nobody needs a finalizer."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.name, "uid": owner.uid, "controller": True}
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": {LABEL_DEPLOYMENT: owner.name, LABEL_MANAGED_BY: MANAGED_BY, **(labels or {})},
        **({"annotations": dict(annotations)} if annotations else {}),
        **({"ownerReferences": [reference]} if owner.uid else {}),
    }


def gateway_labels(owner: Owner) -> dict[str, str]:
    """What the gateway's pods are selected by."""
    return {LABEL_DEPLOYMENT: owner.name, LABEL_ROLE: ROLE_GATEWAY}


def resources(wanted: Resources) -> Manifest:
    """A container's resources."""
    return wanted.model_dump(mode="json", exclude_defaults=True)


def spread(labels: Mapping[str, str]) -> list[Manifest]:
    """Pods with these labels go to different nodes where there are enough."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def grace_seconds(drain_seconds: int) -> int:
    """A pod's grace period: it covers serving on, finishing open requests, and the exit."""
    return LEAVING_SECONDS + drain_seconds + EXIT_SECONDS


def literal(value: str) -> str:
    """A string that Kubernetes does not expand: `$(X)` would stand for a variable."""
    return value.replace("$(", "$$(")


def with_address(value: str) -> str:
    """A string of which Kubernetes expands the pod's address only."""
    return literal(value).replace(f"$$({POD_IP})", f"$({POD_IP})")


def address_variable() -> Manifest:
    """The variable of the pod's address: it comes first, since Kubernetes expands it only in what comes after it."""
    return {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def canonical(value: object) -> str:
    """One JSON text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """A short hash of a plain value; equal values have one."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]
