"""Which pod template is in force, and which manifest was applied: both are remembered on the object itself.

An engine Deployment carries the template that was rendered when the inputs of its role first appeared. While the inputs
are equal, that template is applied again, whatever a newer renderer would write: a new operator restarts no engine.
"""

import json
from collections.abc import Mapping
from typing import Any

from pdx_api.names import (
    ANNOTATION_APPLIED,
    ANNOTATION_INPUTS,
    ANNOTATION_TEMPLATE,
    GROUP,
    LABEL_MANAGED_BY,
    Role,
)
from pdx_api.render.engines import engine_inputs
from pdx_api.spec.types import Spec
from pdx_operator.render.objects import Manifest, canonical, digest

_CARRIED = ("strategy", "minReadySeconds", "progressDeadlineSeconds", "revisionHistoryLimit")


def remembered(deployment: Manifest, spec: Spec, role: Role) -> Manifest:
    """An engine Deployment with its inputs and its pod template written down in its annotations."""
    notes = {
        ANNOTATION_INPUTS: digest(engine_inputs(spec, role)),
        ANNOTATION_TEMPLATE: canonical(deployment["spec"]["template"]),
    }
    return _annotated(deployment, notes)


def in_force(rendered: Manifest, live: Mapping[str, Any] | None) -> Manifest:
    """What to apply: the manifest as rendered, or with the template that the live object keeps for the same inputs."""
    wanted, kept = _annotations(rendered), _annotations(live)
    if ANNOTATION_INPUTS not in wanted or wanted[ANNOTATION_INPUTS] != kept.get(ANNOTATION_INPUTS):
        return rendered
    template = _stored(kept)
    if template is None:
        return rendered
    spec = {**rendered["spec"], "template": template}
    return _annotated({**rendered, "spec": spec}, {ANNOTATION_TEMPLATE: kept[ANNOTATION_TEMPLATE]})


def rescaled(live: Mapping[str, Any], replicas: int) -> Manifest:
    """What to apply to an engine Deployment of an older revision: itself, as it was rendered, with other replicas.

    The spec of today says nothing of it, so everything else comes from the object. An object whose stored template
    cannot be read keeps the template it has.
    """
    metadata, spec = live["metadata"], live["spec"]
    labels = {k: v for k, v in metadata["labels"].items() if k.startswith(f"{GROUP}/") or k == LABEL_MANAGED_BY}
    annotations = {k: v for k, v in _annotations(live).items() if k.startswith(f"{GROUP}/") and k != ANNOTATION_APPLIED}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": metadata.get("ownerReferences") or [],
        },
        "spec": {
            "replicas": replicas,
            **{field: spec[field] for field in _CARRIED if field in spec},
            "selector": spec["selector"],
            "template": _stored(annotations) or spec["template"],
        },
    }


def stamped(manifest: Manifest) -> Manifest:
    """The manifest with the hash of all it says: an object that carries another was applied from another manifest."""
    return _annotated(manifest, {ANNOTATION_APPLIED: digest(manifest)})


def _annotated(manifest: Manifest, annotations: Mapping[str, str]) -> Manifest:
    metadata = {**manifest["metadata"], "annotations": {**_annotations(manifest), **annotations}}
    return {**manifest, "metadata": metadata}


def _annotations(manifest: Mapping[str, Any] | None) -> Mapping[str, str]:
    return ((manifest or {}).get("metadata") or {}).get("annotations") or {}


def _stored(annotations: Mapping[str, str]) -> Manifest | None:
    try:
        template = json.loads(annotations.get(ANNOTATION_TEMPLATE, ""))
    except ValueError:
        return None
    return template if isinstance(template, dict) and "spec" in template else None
