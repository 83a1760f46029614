"""From a snapshot to the writes that follow from it. Pure: equal snapshots give equal plans.

Foreign objects are never touched. Children of a previous owner of the same name are deleted first. An orphan with the
label of a child is adopted, as after a restore from a backup.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdx_api.kube.kinds import DEPLOYMENT
from pdx_api.names import (
    ANNOTATION_INPUTS,
    LABEL_REVISION,
    LABEL_ROLE,
    LABEL_SERVICE,
    Role,
    engines_name,
    gateway_name,
    services_policy_name,
)
from pdx_api.render.engines import wiring_number
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.types import PDDeployment, Spec
from pdx_operator.kube.resources import UNUSABLE, Body, ChildKey, Snapshot, is_terminating
from pdx_operator.observed.workloads import ObservedPool, Workloads, observe
from pdx_operator.plan.drift import differs
from pdx_operator.plan.operations import Apply, Delete
from pdx_operator.plan.ownership import Ownership, ownership
from pdx_operator.plan.pinned_template import pinned, scale_only, with_hash
from pdx_operator.plan.proof import Unproven
from pdx_operator.plan.replicas import engine_counts, is_rolling
from pdx_operator.plan.revision import is_side_service, revision_in_force, wiring_of
from pdx_operator.plan.rollout import Budget, RolloutPlan, plan_rollout
from pdx_operator.render.children import children, with_metadata
from pdx_operator.render.gateway import Installation
from pdx_operator.render.objects import Manifest, annotations_of
from pdx_operator.render.overlay import OverlayError
from pdx_operator.render.rdma import check_rdma, is_engine

log = logging.getLogger(__name__)

_Bodies = Mapping[ChildKey, Body]
_Manifests = Mapping[ChildKey, Manifest]


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes of one reconcile, and what they follow from."""

    deployment: PDDeployment | None
    """None when the spec is invalid."""
    invalid: str = ""
    """Then a sentence that explains why."""
    rollout: RolloutPlan | None = None
    workloads: Workloads = field(default_factory=lambda: Workloads({}))
    applies: tuple[Apply, ...] = ()
    deletes: tuple[Delete, ...] = ()
    """Our own children that are not needed any more."""
    foreign: tuple[ChildKey, ...] = ()
    """Children that cannot be created, because foreign objects have their names."""
    deletes_of_previous: tuple[Delete, ...] = ()
    """Children of a previous owner that still have the name of a child."""

    engines: Mapping[Role, int] = field(default_factory=dict)
    """The desired number of engines of each role."""
    upgrades_gateway: bool = False
    """The gateway's pods are replaced only because this version of PDX renders them otherwise."""
    gateway_waits: bool = False
    """That is put off, because gateways of other objects are being replaced."""

    def without_gateway_upgrade(self) -> "Plan":
        """The same plan, without the write that replaces the gateway's pods."""
        assert self.deployment is not None, "an invalid spec has no writes"
        key = ChildKey(DEPLOYMENT.name, gateway_name(self.deployment.metadata.name))
        return replace(self, applies=tuple(each for each in self.applies if each.key != key), gateway_waits=True)

    @property
    def has_writes(self) -> bool:
        """Whether anything but the status has to be written."""
        return bool(self.applies or self.deletes or self.deletes_of_previous)

    @property
    def awaits_pods(self) -> bool:
        """Whether some pods are not ready yet, or not gone yet."""
        if self.rollout is None:
            return False
        complete = self.rollout.done and (self.gateway_is_complete or self.has_no_gateway)
        return not (complete and all(service.ready >= service.replicas for service in self.workloads.services))

    @property
    def has_no_gateway(self) -> bool:
        """Whether the spec asks for none."""
        return self.deployment is not None and not self.deployment.spec.gateway.enabled

    @property
    def gateway_is_complete(self) -> bool:
        """Whether all gateway pods run the present template and are ready."""
        gateway = self.workloads.gateway
        return gateway is not None and gateway.settled and gateway.ready >= gateway.replicas


def plan(snapshot: Snapshot, installation: Installation, unproven: Unproven | None = None) -> Plan:
    """The writes that follow from a snapshot; none while the object is paused, or if it cannot be planned.

    `unproven`: the engines of the new revision may not replace old ones yet.
    """
    try:
        found = _plan(snapshot, installation, unproven)
    except Exception as error:
        # What a tenant writes into an object or its children must be an error of that one object.
        log.exception(
            "%s/%s cannot be planned", snapshot.body["metadata"]["namespace"], snapshot.body["metadata"]["name"]
        )
        return Plan(
            None, invalid=f"PDX cannot plan this object ({type(error).__name__}); remove what others have changed"
        )
    if found.deployment is None or not found.deployment.spec.paused:
        return found
    return replace(found, applies=(), deletes=(), deletes_of_previous=(), upgrades_gateway=False)


def _plan(snapshot: Snapshot, installation: Installation, unproven: Unproven | None) -> Plan:
    if (reason := snapshot.body.get(UNUSABLE)) is not None:
        return Plan(None, invalid=reason)
    metadata = snapshot.body["metadata"]
    name, uid = metadata["name"], metadata["uid"]
    owners = {key: ownership(body["metadata"], name, uid) for key, body in snapshot.children.items()}
    live = {k: body for k, body in snapshot.children.items() if owners[k] in (Ownership.OURS, Ownership.ORPHAN)}
    try:
        deployment = parse(snapshot.body, tolerant=True)
        revision = revision_in_force(deployment.spec, name, live)
        manifests = children(deployment, revision, installation, uid=uid)
        _check_new_engines(deployment.spec, manifests, live)
    except (InvalidDeploymentError, OverlayError) as error:
        return Plan(None, invalid=str(error))
    except Exception as error:
        # What a tenant writes into a field without a schema must be an error of that one object.
        log.exception("%s/%s cannot be rendered", metadata["namespace"], name)
        return Plan(None, invalid=f"PDX cannot render this spec ({type(error).__name__}); simplify its podTemplates")
    rendered = {_key(manifest): manifest for manifest in manifests}
    # A child that cannot be read is no engine; the others of its revision count.
    workloads = observe({key: body for key, body in live.items() if UNUSABLE not in body}, gateway_name(name))
    engines = engine_counts(
        deployment.spec, revision, tuple(workloads.pools.values()), snapshot.body.get("status") or {}
    )
    rollout = _rollout(deployment, revision, engines, workloads, unproven)
    desired = dict(_desired(deployment, rendered, live, workloads, rollout))
    kept = desired.keys() | set(_kept(name, live, workloads, rollout))
    return Plan(
        deployment,
        rollout=rollout,
        workloads=workloads,
        applies=tuple(_applies(desired, live, blocked=owners.keys() - live.keys())),
        deletes=tuple(_deletes({k: b for k, b in live.items() if k not in kept and owners[k] is Ownership.OURS})),
        foreign=tuple(key for key in desired if owners.get(key) is Ownership.FOREIGN),
        deletes_of_previous=tuple(
            _deletes({k: snapshot.children[k] for k in desired if owners.get(k) is Ownership.PREVIOUS_OWNER})
        ),
        engines=engines,
        upgrades_gateway=_upgrades_gateway(ChildKey(DEPLOYMENT.name, gateway_name(name)), desired, live),
    )


def _key(manifest: Manifest) -> ChildKey:
    return ChildKey(manifest["kind"], manifest["metadata"]["name"])


def _check_new_engines(spec: Spec, manifests: Sequence[Manifest], live: _Bodies) -> None:
    """Refuse engines that would get a new template with half of what RDMA needs. Raises OverlayError."""
    for manifest in manifests:
        if is_engine(manifest):
            inputs = annotations_of(live.get(_key(manifest))).get(ANNOTATION_INPUTS)
            if inputs != annotations_of(manifest)[ANNOTATION_INPUTS]:
                check_rdma(spec, manifest)


def _upgrades_gateway(key: ChildKey, desired: _Manifests, live: _Bodies) -> bool:
    manifest, body = desired.get(key), live.get(key)
    if manifest is None or body is None:
        return False
    if annotations_of(body).get(ANNOTATION_INPUTS) != annotations_of(manifest)[ANNOTATION_INPUTS]:
        return False
    template = {"kind": manifest["kind"], "spec": {"template": manifest["spec"]["template"]}}
    return differs(template, body) is not None


def _rollout(
    deployment: PDDeployment,
    revision: str,
    desired: Mapping[Role, int],
    workloads: Workloads,
    unproven: Unproven | None,
) -> RolloutPlan:
    spec = deployment.spec
    budget = Budget(spec.rollout.max_surge, spec.rollout.max_unavailable)
    return plan_rollout(revision, desired, tuple(workloads.pools.values()), budget, unproven)


def _desired(
    deployment: PDDeployment, rendered: _Manifests, live: _Bodies, workloads: Workloads, rollout: RolloutPlan
) -> Iterator[tuple[ChildKey, Manifest]]:
    """The children of the spec's own revision, with planned replicas and pinned templates; then older revisions."""
    name, revision = deployment.metadata.name, rollout.revision
    roles = {engines_name(name, role, revision): role for role in deployment.spec.pools()}
    for key, manifest in rendered.items():
        if key.kind == DEPLOYMENT.name and (role := roles.get(key.name)) is not None:
            spec = dict(manifest["spec"])
            if _owns_replicas(deployment, role, rollout, workloads):
                spec["replicas"] = rollout.replicas[revision, role]
            else:
                del spec["replicas"]
            yield key, pinned({**manifest, "spec": spec}, live.get(key))
        elif is_side_service(manifest):
            yield key, _pinned_service(manifest, live, wiring_number(deployment.spec))
        else:
            yield key, manifest
    # Of older revisions only the replicas change.
    for key, pool in workloads.pools.items():
        replicas = rollout.replicas.get((pool.revision, pool.role), pool.replicas)
        if key not in rendered and replicas != pool.replicas:
            yield key, with_metadata(deployment.spec, scale_only(live[key], replicas))


def _owns_replicas(deployment: PDDeployment, role: Role, rollout: RolloutPlan, workloads: Workloads) -> bool:
    """Whether PDX writes the number of engines: if the spec names it, and during a rollout."""
    revision, pools = rollout.revision, tuple(workloads.pools.values())
    if deployment.spec.pools()[role].replicas is not None or is_rolling(revision, pools):
        return True
    # Kubernetes creates a Deployment without a number with one pod.
    live = next((pool.replicas for pool in pools if (pool.revision, pool.role) == (revision, role)), 1)
    return live != rollout.replicas[revision, role]


def _pinned_service(manifest: Manifest, live: _Bodies, wiring: int) -> Manifest:
    """A side service's object as the engines of its revision expect it: with the template and ports in force."""
    key = _key(manifest)
    body, deployment = live.get(key), live.get(ChildKey(DEPLOYMENT.name, key.name))
    if key.kind == DEPLOYMENT.name:
        return pinned(manifest, body)
    if body is None or deployment is None or wiring_of(deployment) == wiring:
        return manifest
    return {**manifest, "spec": {**manifest["spec"], "ports": body["spec"]["ports"]}}


def _kept(name: str, live: _Bodies, workloads: Workloads, rollout: RolloutPlan) -> Iterator[ChildKey]:
    """Deployments of revisions that have engines left, and their side services with Services and network policy.

    The Deployment of an engine exists until its last pod is gone (it is deleted in the foreground), and so do the side
    services of its revision.
    """
    revisions = {pool.revision for pool in workloads.pools.values()} | {revision for revision, _ in rollout.replicas}
    names = {pool.name for pool in workloads.pools.values() if _is_planned(pool, rollout)}
    for key, body in live.items():
        if key.kind not in (DEPLOYMENT.name, "Service"):
            continue
        labels = body["metadata"].get("labels") or {}
        if LABEL_SERVICE in labels and labels.get(LABEL_REVISION) in revisions:
            yield key
            yield ChildKey("NetworkPolicy", services_policy_name(name))
        elif key.name in names:
            yield key


def _is_planned(pool: ObservedPool, rollout: RolloutPlan) -> bool:
    return (pool.revision, pool.role) in rollout.replicas


def _applies(desired: _Manifests, live: _Bodies, blocked: set[ChildKey]) -> Iterator[Apply]:
    for key, manifest in desired.items():
        if key in blocked:
            continue
        body = live.get(key)
        paused = key.kind == DEPLOYMENT.name and ((body or {}).get("spec") or {}).get("paused")
        if paused:
            # A change of the template would not arrive. Users pause the object: spec.paused.
            manifest = {**manifest, "spec": {**manifest["spec"], "paused": False}}
        hashed = with_hash(manifest)
        if body is None:
            yield Apply(hashed, "", "")
        elif not is_terminating(body) and (path := differs(hashed, body)):
            metadata = body["metadata"]
            yield Apply(hashed, metadata["uid"], "spec.paused" if paused else path, metadata.get("resourceVersion", ""))


def _deletes(bodies: _Bodies) -> Iterator[Delete]:
    for key, body in bodies.items():
        if not is_terminating(body):
            engines = LABEL_ROLE in (body["metadata"].get("labels") or {}) and key.kind == DEPLOYMENT.name
            yield Delete(key, body["metadata"]["uid"], foreground=engines)
