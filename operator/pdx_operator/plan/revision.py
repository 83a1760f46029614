"""Which pairing revision of the spec is in force: the one that this version of PDX computes, or another version's.

The pairing revision of an unchanged spec differs between versions of PDX if the wiring number of its connector does.
Engines of another version stay in force while the inputs of all roles and side services are unchanged: their pinned
templates fit together. As soon as one of them must be rendered again, the spec gets this version's revision, and a
rollout moves to it in pairs. So engines with different wiring numbers never pair.
"""

from collections.abc import Iterator, Mapping

from pdx_api.kube.kinds import DEPLOYMENT
from pdx_api.names import (
    ANNOTATION_INPUTS,
    ANNOTATION_WIRING,
    LABEL_REVISION,
    LABEL_ROLE,
    LABEL_SERVICE,
    Role,
    engines_name,
    service_name,
)
from pdx_api.render.engines import engine_inputs, pairing_revision, service_inputs, side_services
from pdx_api.spec.types import Spec
from pdx_operator.kube.resources import Body, ChildKey
from pdx_operator.render.objects import annotations_of, digest

_Bodies = Mapping[ChildKey, Body]


def revision_in_force(spec: Spec, name: str, live: _Bodies) -> str:
    """The pairing revision of the engines of this spec. `live` are the object's own children."""
    own = pairing_revision(spec)
    found = dict(_engines(live))
    if own in found:
        return own
    for revision, body in sorted(found.items()):
        if revision == pairing_revision(spec, wiring=wiring_of(body)) and _is_unchanged(spec, name, revision, live):
            return revision
    return own


def wiring_of(body: Body | None) -> int:
    """The wiring number with which a live object was rendered."""
    text = annotations_of(body).get(ANNOTATION_WIRING, "1")
    return int(text) if text.isdecimal() else 1


def _engines(live: _Bodies) -> Iterator[tuple[str, Body]]:
    for key, body in live.items():
        labels = body["metadata"].get("labels") or {}
        if key.kind == DEPLOYMENT.name and labels.get(LABEL_ROLE) in set(Role):
            yield labels.get(LABEL_REVISION, ""), body


def _is_unchanged(spec: Spec, name: str, revision: str, live: _Bodies) -> bool:
    """Whether all engines and side services of the revision exist and have the inputs of the spec."""
    inputs = {engines_name(name, role, revision): engine_inputs(spec, role) for role in spec.pools()}
    inputs |= {
        service_name(name, service.name, revision): service_inputs(spec, service)
        for service in side_services(spec)
        if not service.is_sidecar
    }
    return all(_recorded(live, deployment) == digest(each) for deployment, each in inputs.items())


def _recorded(live: _Bodies, deployment: str) -> str | None:
    return annotations_of(live.get(ChildKey(DEPLOYMENT.name, deployment))).get(ANNOTATION_INPUTS)


def is_side_service(body: Body) -> bool:
    """Whether an object belongs to a side service."""
    return LABEL_SERVICE in (body["metadata"].get("labels") or {})
