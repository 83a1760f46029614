"""The parts that all children of a PDDeployment share: names, labels, owner, pod settings, hashes of manifests."""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.names import (
    ANNOTATION_INPUTS,
    ANNOTATION_TEMPLATE,
    API_VERSION,
    DEFAULT_NAMESPACE,
    KIND,
    LABEL_APP_NAME,
    LABEL_COMPONENT,
    LABEL_DEPLOYMENT,
    LABEL_INSTANCE,
    LABEL_MANAGED_BY,
    LABEL_PART_OF,
    LABEL_ROLE,
    LABEL_SERVICE,
    MANAGED_BY,
    ROLE_GATEWAY,
    Role,
)
from pdx_api.spec.types import PDDeployment, Resources

Manifest = dict[str, Any]

_PLAIN_BYTES: Final = 96 * 1024
_PACKED_BYTES: Final = 192 * 1024
_UNPACKED_BYTES: Final = 2**21
"""Bytes of a recorded template that are read: anybody who may edit the Deployment may write the annotation."""

PRE_STOP_SECONDS: Final = 5
"""How long a terminating pod still serves, until all of its clients have observed the termination."""
POD_IP: Final = "POD_IP"
"""Environment variable with the pod's own address."""
EXIT_SECONDS: Final = 10
"""Part of the grace period for the program's exit after its last request."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The PDDeployment as its children refer to it."""

    name: str
    namespace: str
    uid: str | None
    """None outside a cluster: printed manifests have no owner."""


def owner_of(deployment: PDDeployment, uid: str | None) -> Owner:
    """The owner of a deployment's children."""
    return Owner(deployment.metadata.name, deployment.metadata.namespace or DEFAULT_NAMESPACE, uid)


def metadata(
    owner: Owner, name: str, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Manifest:
    """Metadata of a child. Kubernetes deletes it after its owner, so no finalizer is needed."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.name, "uid": owner.uid, "controller": True}
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": {LABEL_MANAGED_BY: MANAGED_BY, **app_labels({LABEL_DEPLOYMENT: owner.name, **(labels or {})})},
        **({"annotations": dict(annotations)} if annotations else {}),
        **({"ownerReferences": [reference]} if owner.uid else {}),
    }


def app_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """PDX's labels, and Kubernetes' recommended labels that follow from them. Selectors use only PDX's."""
    component = labels.get(LABEL_ROLE) or labels.get(LABEL_SERVICE)
    program = "vllm" if component in set(Role) else f"{MANAGED_BY}-{component}" if component else MANAGED_BY
    recommended = {LABEL_APP_NAME: program, LABEL_INSTANCE: labels[LABEL_DEPLOYMENT], LABEL_PART_OF: MANAGED_BY}
    return {**recommended, **({LABEL_COMPONENT: component} if component else {}), **labels}


def gateway_labels(owner: Owner) -> dict[str, str]:
    """Labels that select the gateway's pods."""
    return {LABEL_DEPLOYMENT: owner.name, LABEL_ROLE: ROLE_GATEWAY}


def resources(of: Resources) -> Manifest:
    """A container's resources."""
    return of.model_dump(mode="json", exclude_defaults=True)


def with_requests(given: Manifest, requests: Mapping[str, str]) -> Manifest:
    """A container's resources, with these requests if they name neither CPU nor memory.

    Without any of them the pod is BestEffort: the first to be evicted, and refused where a quota counts requests.
    """
    named = {name for part in given.values() for name in part}
    return given if {"cpu", "memory"} & named else {**given, "requests": {**requests, **given.get("requests", {})}}


def spread(labels: Mapping[str, str]) -> list[Manifest]:
    """Spread pods with these labels over nodes, if there are enough nodes."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def grace_seconds(drain_seconds: int) -> int:
    """A pod's grace period: time to serve on, to finish open requests, and to exit."""
    return PRE_STOP_SECONDS + drain_seconds + EXIT_SECONDS


def literal(value: str) -> str:
    """Escape a string so that Kubernetes expands no `$(VARIABLE)` in it."""
    return value.replace("$(", "$$(")


def with_address(value: str) -> str:
    """Escape a string so that Kubernetes expands only the pod's address in it."""
    return literal(value).replace(f"$$({POD_IP})", f"$({POD_IP})")


def address_variable() -> Manifest:
    """The variable with the pod's address. It comes first, because Kubernetes expands it only in later variables."""
    return {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def annotations_of(manifest: Mapping[str, Any] | None) -> Mapping[str, str]:
    """The annotations of a manifest or of a live object; empty for None."""
    return ((manifest or {}).get("metadata") or {}).get("annotations") or {}


def with_annotations(manifest: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """The manifest with additional annotations."""
    metadata = {**manifest["metadata"], "annotations": {**annotations_of(manifest), **annotations}}
    return {**manifest, "metadata": metadata}


def with_template(deployment: Manifest, inputs: object) -> Manifest:
    """Record the pod template and the hash of its inputs in annotations (`plan.pinned_template` reads them).

    The API server allows 256 KiB of annotations. A template that is too large even when it is compressed is not
    recorded: then the one in the live object stays in force.
    """
    template = _recorded(canonical(deployment["spec"]["template"]))
    record = {ANNOTATION_INPUTS: digest(inputs), **({ANNOTATION_TEMPLATE: template} if template else {})}
    return with_annotations(deployment, record)


def _recorded(template: str) -> str:
    """A template as text, so that people can read it; compressed if it is long, and empty if it is too long."""
    if len(template.encode()) <= _PLAIN_BYTES:
        return template
    packed = base64.b64encode(zlib.compress(template.encode(), 9)).decode()
    return packed if len(packed) <= _PACKED_BYTES else ""


def recorded_template(annotations: Mapping[str, str]) -> Manifest | None:
    """The pod template that `with_template` has recorded; None if there is none, or if it is unreadable."""
    text = annotations.get(ANNOTATION_TEMPLATE, "")
    try:
        if text and not text.startswith("{"):
            packed = base64.b64decode(text, validate=True)
            text = zlib.decompressobj().decompress(packed, _UNPACKED_BYTES).decode()
        template = json.loads(text)
    except (RecursionError, ValueError, zlib.error):
        return None
    return template if isinstance(template, dict) and "spec" in template else None


def canonical(value: object) -> str:
    """A JSON text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """A short hash of a plain value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]
