"""Which pod template an engine Deployment keeps, and the hash of the manifest that was applied.

An engine Deployment carries the template that was rendered when the inputs of its role first appeared (`render.engines`
records it). While the inputs are equal, that template is applied again, even if a newer version of PDX would render
another one: an upgrade of the operator restarts no engine.
"""

from pdx_api.names import (
    ANNOTATION_APPLIED,
    ANNOTATION_INPUTS,
    ANNOTATION_TEMPLATE,
    ANNOTATION_WIRING,
    GROUP,
    RECOMMENDED_LABELS,
)
from pdx_operator.kube.resources import Body
from pdx_operator.render.objects import Manifest, annotations_of, digest, recorded_template, with_annotations

_KEPT = ("strategy", "minReadySeconds", "progressDeadlineSeconds", "revisionHistoryLimit")
"""Fields of a Deployment's spec that a scale-only manifest repeats."""


def pinned(rendered: Manifest, live: Body | None) -> Manifest:
    """The manifest as rendered, or with the template that the live object stores for the same inputs."""
    desired, stored = annotations_of(rendered), annotations_of(live)
    if ANNOTATION_INPUTS not in desired or desired[ANNOTATION_INPUTS] != stored.get(ANNOTATION_INPUTS):
        return rendered
    template = recorded_template(stored)
    if template is None and ANNOTATION_TEMPLATE not in stored and live is not None:
        # It is too large for an annotation.
        template = live["spec"]["template"]
    if template is None:
        return rendered
    kept = {name: stored[name] for name in (ANNOTATION_TEMPLATE, ANNOTATION_WIRING) if name in stored}
    others = {name: text for name, text in desired.items() if name not in (ANNOTATION_TEMPLATE, ANNOTATION_WIRING)}
    metadata = {**rendered["metadata"], "annotations": {**others, **kept}}
    return {**rendered, "metadata": metadata, "spec": {**rendered["spec"], "template": template}}


def scale_only(live: Body, replicas: int) -> Manifest:
    """A manifest for an engine Deployment of an older revision: as it was rendered, with other replicas.

    The present spec does not describe that revision, so everything else comes from the live object. An object whose
    stored template is unreadable keeps the template in its spec.
    """
    metadata, spec = live["metadata"], live["spec"]
    labels = {k: v for k, v in metadata["labels"].items() if k.startswith(f"{GROUP}/") or k in RECOMMENDED_LABELS}
    stored = annotations_of(live).items()
    annotations = {k: v for k, v in stored if k.startswith(f"{GROUP}/") and k != ANNOTATION_APPLIED}
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
            **{field: spec[field] for field in _KEPT if field in spec},
            "selector": spec["selector"],
            "template": recorded_template(annotations) or spec["template"],
        },
    }


def with_hash(manifest: Manifest) -> Manifest:
    """The manifest with its own hash: a live object with another hash was applied from another manifest."""
    return with_annotations(manifest, {ANNOTATION_APPLIED: digest(manifest)})
