"""From what is seen of an object to what is to be written: pure, and the same whenever it is asked.

Nothing is taken over that somebody else controls. A child of a former object of the same name is on its way out, so it
is waited for; one without an owner that carries the labels of a child is adopted, as after a restore from a backup.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from pdx_api.names import (
    ANNOTATION_APPLIED,
    GROUP,
    KIND,
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_SERVICE,
    gateway_name,
    services_policy_name,
)
from pdx_api.render.engines import pairing_revision
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.types import PDDeployment
from pdx_operator.kube.cache import Body, ChildKey, Snapshot
from pdx_operator.kube.resources import DEPLOYMENT, KIND_OF, Kind
from pdx_operator.observed.workloads import (
    GatewayState,
    PoolState,
    ServiceState,
    gateway_state,
    pool_state,
    service_state,
)
from pdx_operator.plan import rollout
from pdx_operator.plan.drift import differs
from pdx_operator.plan.rollout import Budget, Plan
from pdx_operator.render import children, pinned_template
from pdx_operator.render.objects import Manifest
from pdx_operator.render.overlay import OverlayError


class Claim(Enum):
    """Whose an existing object is."""

    OURS = auto()
    FORMER = auto()
    """Of an object of the same name that is gone."""
    NOBODY = auto()
    """It has our labels and no controller."""
    FOREIGN = auto()


@dataclass(frozen=True, slots=True)
class Change:
    """A child to write."""

    manifest: Manifest
    uid: str
    """Of the object that exists; empty when none is known."""
    reason: str
    """Path of the field that differs; empty for a new object."""
    version: str = ""
    """Of the object that exists."""

    @property
    def wanted(self) -> str:
        """Stands for all that the manifest says."""
        return str(self.manifest["metadata"]["annotations"][ANNOTATION_APPLIED])

    @property
    def kind(self) -> Kind:
        """Its kind."""
        return KIND_OF[self.manifest["kind"]]

    @property
    def key(self) -> ChildKey:
        """Its name among the children."""
        return ChildKey(self.manifest["kind"], self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Removal:
    """A child to delete."""

    key: ChildKey
    uid: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One step."""

    deployment: PDDeployment | None
    """None when the spec cannot be used."""
    invalid: str = ""
    """A sentence that says why."""
    plan: Plan | None = None
    pools: tuple[PoolState, ...] = ()
    gateway: GatewayState | None = None
    services: tuple[ServiceState, ...] = ()
    """Side services that have a Deployment, of every revision."""
    changes: tuple[Change, ...] = ()
    removals: tuple[Removal, ...] = ()
    foreign: tuple[ChildKey, ...] = ()
    """Wanted names that somebody else's objects have."""
    leaving: tuple[Removal, ...] = ()
    """Children of a former object that still have a wanted name."""

    @property
    def writes(self) -> bool:
        """Whether there is anything to write, the status aside."""
        return bool(self.changes or self.removals or self.leaving)

    @property
    def awaits(self) -> bool:
        """Whether pods are still to become ready, or to go."""
        if self.plan is None:
            return False
        gateway = self.gateway
        complete = self.plan.done and gateway and gateway.settled and gateway.ready >= gateway.replicas
        return not (complete and all(service.ready >= service.replicas for service in self.services))


def decide(snapshot: Snapshot, *, gateway_image: str, operator_namespace: str = "") -> Decision:
    """What follows from a snapshot."""
    uid = snapshot.body["metadata"]["uid"]
    try:
        deployment = parse(snapshot.body)
        rendered = children.children(
            deployment, uid=uid, gateway_image=gateway_image, operator_namespace=operator_namespace
        )
    except (InvalidDeploymentError, OverlayError) as error:
        return Decision(None, invalid=str(error))
    claims = {key: claim(body["metadata"], deployment.metadata.name, uid) for key, body in snapshot.children.items()}
    live = {key: body for key, body in snapshot.children.items() if claims[key] in (Claim.OURS, Claim.NOBODY)}
    pools = tuple(_pools(live))
    plan = _plan(deployment, pools)
    gateway = live.get(ChildKey(DEPLOYMENT.name, gateway_name(deployment.metadata.name)))
    wanted = dict(_wanted(rendered, live, plan))
    kept = wanted.keys() | set(_kept(deployment.metadata.name, live, pools, plan))
    blocked = {key for key in wanted if claims.get(key) in (Claim.FORMER, Claim.FOREIGN)}
    return Decision(
        deployment,
        plan=plan,
        pools=pools,
        gateway=gateway_state(gateway) if gateway else None,
        services=tuple(_services(live)),
        changes=tuple(_changes({key: m for key, m in wanted.items() if key not in blocked}, live)),
        removals=tuple(
            Removal(key, body["metadata"]["uid"])
            for key, body in live.items()
            if key not in kept and claims[key] is Claim.OURS and not body["metadata"].get("deletionTimestamp")
        ),
        foreign=tuple(key for key in blocked if claims[key] is Claim.FOREIGN),
        leaving=tuple(
            Removal(key, metadata["uid"])
            for key in blocked
            if claims[key] is Claim.FORMER
            and not (metadata := snapshot.children[key]["metadata"]).get("deletionTimestamp")
        ),
    )


def claim(metadata: Mapping[str, Any], name: str, uid: str) -> Claim:
    """Whose an object is, for the PDDeployment with this name and uid."""
    owner = next((ref for ref in metadata.get("ownerReferences") or () if ref.get("controller")), None)
    if owner is None:
        return Claim.NOBODY if (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT) == name else Claim.FOREIGN
    if owner["uid"] == uid:
        return Claim.OURS
    group = str(owner["apiVersion"]).partition("/")[0]
    return Claim.FORMER if (group, owner["kind"], owner["name"]) == (GROUP, KIND, name) else Claim.FOREIGN


def is_leaving(body: Body) -> bool:
    """Whether the object is being deleted; its children are then Kubernetes' to collect."""
    return bool(body["metadata"].get("deletionTimestamp"))


def _pools(live: Mapping[ChildKey, Body]) -> Iterator[PoolState]:
    for key, body in live.items():
        if key.kind == DEPLOYMENT.name and (pool := pool_state(body)) is not None:
            yield pool


def _services(live: Mapping[ChildKey, Body]) -> Iterator[ServiceState]:
    for key, body in live.items():
        if key.kind == DEPLOYMENT.name and (service := service_state(body)) is not None:
            yield service


def _plan(deployment: PDDeployment, pools: tuple[PoolState, ...]) -> Plan:
    spec = deployment.spec
    desired = {role: pool.replicas for role, pool in spec.pools().items()}
    budget = Budget(spec.rollout.max_surge, spec.rollout.max_unavailable)
    return rollout.plan(pairing_revision(spec), desired, pools, budget)


def _wanted(
    rendered: tuple[Manifest, ...], live: Mapping[ChildKey, Body], plan: Plan
) -> Iterator[tuple[ChildKey, Manifest]]:
    """What the spec's own revision consists of, with the replicas and the templates in force."""
    for manifest in rendered:
        key = ChildKey(manifest["kind"], manifest["metadata"]["name"])
        if key.kind == DEPLOYMENT.name and (pool := pool_state(manifest)) is not None:
            spec = {**manifest["spec"], "replicas": plan.replicas[pool.revision, pool.role]}
            yield key, pinned_template.in_force({**manifest, "spec": spec}, live.get(key))
        else:
            yield key, manifest
    # Older revisions: nothing but their replicas is anybody's business any more.
    ours = {key for key in live if key.kind == DEPLOYMENT.name} - {
        ChildKey(m["kind"], m["metadata"]["name"]) for m in rendered
    }
    for key in ours:
        pool = pool_state(live[key])
        if pool is not None and plan.replicas.get((pool.revision, pool.role), pool.replicas) != pool.replicas:
            yield key, pinned_template.rescaled(live[key], plan.replicas[pool.revision, pool.role])


def _kept(name: str, live: Mapping[ChildKey, Body], pools: tuple[PoolState, ...], plan: Plan) -> Iterator[ChildKey]:
    """Deployments and Services of older revisions that the plan still needs, their side services and guard included."""
    names = {pool.name for pool in pools if (pool.revision, pool.role) in plan.replicas}
    revisions = {revision for revision, _ in plan.replicas}

    def serves(body: Body) -> bool:
        labels = body["metadata"].get("labels") or {}
        return LABEL_SERVICE in labels and labels.get(LABEL_REVISION) in revisions

    for key, body in live.items():
        if key.kind in (DEPLOYMENT.name, "Service"):
            if serves(body):
                yield key
                yield ChildKey("NetworkPolicy", services_policy_name(name))
            elif key.name in names:
                yield key


def _changes(wanted: Mapping[ChildKey, Manifest], live: Mapping[ChildKey, Body]) -> Iterator[Change]:
    for key, manifest in wanted.items():
        stamped, body = pinned_template.stamped(manifest), live.get(key)
        if body is None:
            yield Change(stamped, "", "")
        elif not body["metadata"].get("deletionTimestamp") and (path := differs(stamped, body)):
            metadata = body["metadata"]
            yield Change(stamped, metadata["uid"], path, metadata.get("resourceVersion", ""))
