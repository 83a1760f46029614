"""Frozen records of Deployments and pods, read from plain dicts. The plan, the diagnosis and the status use them.

A missing field is read with the meaning that Kubernetes gives to its absence. Nothing here decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from pdx_api.kube.kinds import DEPLOYMENT
from pdx_api.names import LABEL_REVISION, LABEL_ROLE, LABEL_SERVICE, Role
from pdx_operator.kube.resources import Body, ChildKey

CUT: Final = 1024
"""Characters kept of a message."""
MESSAGE_CUT: Final = 4096
"""Characters kept of a termination message: Kubernetes' own limit."""
MESSAGE_LINES: Final = 150
"""Lines kept of it."""


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """The engines of one role in one revision: their Deployment."""

    name: str
    role: Role
    revision: str
    replicas: int
    """Replicas in its spec."""
    ready: int
    """Available engines; may exceed a reduced `replicas` for a while."""
    settled: bool
    """Kubernetes has observed the spec, and exactly `replicas` pods of its present template exist."""
    pods: int = 0
    """Pods that exist, including terminating ones if the API server counts them."""
    created: str = ""
    """Creation time of the Deployment (RFC 3339, UTC): orders revisions by age."""
    proven: bool = False
    """All its engines were available once, so unavailable ones may come back."""
    failure: str = ""
    """Why the API server rejects its pods (quota, admission); empty while it accepts them."""
    surging: bool = False
    """Its pods are being replaced in place, with more pods than `replicas` in the meantime."""


@dataclass(frozen=True, slots=True)
class ObservedGateway:
    """The gateway: its Deployment."""

    replicas: int
    ready: int
    settled: bool
    failure: str = ""
    uid: str = ""
    """Of the Deployment."""


@dataclass(frozen=True, slots=True)
class ObservedService:
    """A side service of one revision: its Deployment."""

    name: str
    """Value of the service label."""
    revision: str
    replicas: int
    ready: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Workloads:
    """The Deployments of one PDDeployment, each read once."""

    pools: Mapping[ChildKey, ObservedPool]
    """Engines of all revisions."""
    gateway: ObservedGateway | None = None
    services: tuple[ObservedService, ...] = ()
    """Side services of all revisions."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of a container ended."""

    exit_code: int
    reason: str
    message: str
    """Its termination message, or the end of its log where the pod's policy falls back to that."""
    seconds: float = 0.0
    """How long the run lasted."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container that is not ready."""

    name: str
    image: str
    waiting: str
    """Why it does not run; empty while it runs or has ended."""
    message: str
    """Kubernetes' message about `waiting`."""
    running_since: str
    """Start of the present run (RFC 3339); empty while it does not run."""
    started: bool
    """Its startup probe has succeeded in this run."""
    restarts: int
    ending: Ending | None
    """The latest run that has ended."""
    sidecar: bool = False
    """Whether it is one of the pod's init containers."""
    startup_seconds: int = 0
    """When its startup probe gives up; 0 without one."""
    grace_seconds: int = 0
    """How long it then has to end."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod. Of a ready pod only the first seven fields are set: a cluster may have ten thousand pods."""

    name: str
    role: str
    """Value of the role label: one of `Role`, or gateway."""
    revision: str
    ready: bool
    terminating: bool = False
    due: str = ""
    """When a terminating pod has used up its grace period (RFC 3339)."""
    node: str = ""
    placed: str = ""
    """When the scheduler placed it, or last found no node for it (RFC 3339)."""
    phase: str = ""
    reason: str = ""
    """Why the pod as a whole failed, for example Evicted or NodeLost."""
    message: str = ""
    unschedulable: str = ""
    """The scheduler's message while it finds no node."""
    gated: bool = False
    """Scheduling gates keep it from the scheduler: a queue has not admitted it yet."""
    gates: tuple[str, ...] = ()
    containers: tuple[ContainerView, ...] = ()
    """Containers that are not ready, init containers first."""


@dataclass(frozen=True, slots=True)
class PodInspection:
    """The pods of a PDDeployment, as they were last listed."""

    pods: tuple[PodView, ...] = ()
    logs: Mapping[str, str] = field(default_factory=dict)
    """The end of the log of a failed run, by pod."""
    done: bool = False
    """Whether the pods have been listed, or nothing required it."""


def observe(children: Mapping[ChildKey, Body], gateway: str) -> Workloads:
    """Read the Deployments among the children; `gateway` is the name of the gateway's."""
    deployments = {key: body for key, body in children.items() if key.kind == DEPLOYMENT.name}
    pools = ((key, observe_pool(body)) for key, body in deployments.items())
    services = (observe_service(body) for body in deployments.values())
    live = deployments.get(ChildKey(DEPLOYMENT.name, gateway))
    return Workloads(
        pools={key: pool for key, pool in pools if pool is not None},
        gateway=None if live is None else observe_gateway(live),
        services=tuple(service for service in services if service is not None),
    )


def observe_pool(deployment: Body) -> ObservedPool | None:
    """Read a Deployment; None unless its pods are engines."""
    metadata = deployment.get("metadata") or {}
    labels = metadata.get("labels") or {}
    if labels.get(LABEL_ROLE) not in set(Role):
        return None
    status = deployment.get("status") or {}
    return ObservedPool(
        name=metadata.get("name", ""),
        role=Role(labels[LABEL_ROLE]),
        revision=labels.get(LABEL_REVISION, ""),
        replicas=_replicas(deployment),
        ready=status.get("availableReplicas") or 0,
        settled=_settled(deployment),
        pods=(status.get("replicas") or 0) + (status.get("terminatingReplicas") or 0),
        created=str(metadata.get("creationTimestamp") or ""),
        # Kubernetes leaves this reason in place when pods fail later.
        proven=_condition(status, "Progressing").get("reason") == "NewReplicaSetAvailable",
        failure=_failure(status),
        surging=_surges(deployment),
    )


def observe_gateway(deployment: Body) -> ObservedGateway:
    """Read the gateway's Deployment."""
    status = deployment.get("status") or {}
    return ObservedGateway(
        replicas=_replicas(deployment),
        ready=status.get("availableReplicas") or 0,
        settled=_settled(deployment),
        failure=_failure(status),
        uid=(deployment.get("metadata") or {}).get("uid") or "",
    )


def observe_service(deployment: Body) -> ObservedService | None:
    """Read a Deployment; None unless its pod is a side service."""
    labels = (deployment.get("metadata") or {}).get("labels") or {}
    if not labels.get(LABEL_SERVICE):
        return None
    status = deployment.get("status") or {}
    return ObservedService(
        name=labels[LABEL_SERVICE],
        revision=labels.get(LABEL_REVISION, ""),
        replicas=_replicas(deployment),
        ready=status.get("availableReplicas") or 0,
        failure=_failure(status),
    )


def pod_view(pod: Body) -> PodView:
    """Read a pod of an engine, of the gateway, or of a side service; the service's name is its role."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels = metadata.get("labels") or {}
    ready = _condition(status, "Ready").get("status") == "True"
    role = labels.get(LABEL_ROLE) or labels.get(LABEL_SERVICE, "")
    spec, due = pod.get("spec") or {}, str(metadata.get("deletionTimestamp") or "")
    head = {
        "name": metadata.get("name", ""),
        "role": role,
        "revision": labels.get(LABEL_REVISION, ""),
        "ready": ready,
        "terminating": bool(due),
        "due": due,
        "node": spec.get("nodeName") or "",
    }
    if ready:
        return PodView(**head)
    scheduled = _condition(status, "PodScheduled")
    return PodView(
        **head,
        placed=str(scheduled.get("lastTransitionTime") or metadata.get("creationTimestamp") or ""),
        phase=status.get("phase") or "",
        reason=status.get("reason") or "",
        message=_cut(status.get("message")),
        unschedulable=_cut(scheduled.get("message")) if scheduled.get("status") == "False" else "",
        gated=scheduled.get("reason") == "SchedulingGated",
        gates=tuple(str(gate.get("name")) for gate in spec.get("schedulingGates") or ()),
        containers=(
            # An init container that has succeeded is not ready either.
            *(
                _container_view(c, sidecar=True)
                for c in status.get("initContainerStatuses") or ()
                if _is_unready(c, done=0)
            ),
            *(_container_view(c, spec=spec) for c in status.get("containerStatuses") or () if _is_unready(c)),
        ),
    )


def _replicas(deployment: Body) -> int:
    replicas = (deployment.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)


def _settled(deployment: Body) -> bool:
    status = deployment.get("status") or {}
    seen = (status.get("observedGeneration") or 0) >= ((deployment.get("metadata") or {}).get("generation") or 0)
    replicas = _replicas(deployment)
    return seen and (status.get("replicas") or 0) == replicas and (status.get("updatedReplicas") or 0) == replicas


def _surges(deployment: Body) -> bool:
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    surge = ((spec.get("strategy") or {}).get("rollingUpdate") or {}).get("maxSurge")
    return surge not in (None, 0, "0%") and (status.get("replicas") or 0) > (status.get("updatedReplicas") or 0)


def _condition(status: Body, kind: str) -> Body:
    conditions: Sequence[Body] = status.get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def _failure(status: Body) -> str:
    condition = _condition(status, "ReplicaFailure")
    return _cut(condition.get("message")) if condition.get("status") == "True" else ""


def _is_unready(status: Body, done: int | None = None) -> bool:
    ended = (status.get("state") or {}).get("terminated")
    return not status.get("ready") and (ended is None or ended.get("exitCode") != done)


def _container_view(status: Body, *, sidecar: bool = False, spec: Body = MappingProxyType({})) -> ContainerView:
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    return ContainerView(
        name=status.get("name", ""),
        image=status.get("image", ""),
        waiting=waiting.get("reason") or "",
        message=_cut(waiting.get("message")),
        running_since=str((state.get("running") or {}).get("startedAt") or ""),
        started=bool(status.get("started")),
        restarts=status.get("restartCount") or 0,
        ending=_ending(state.get("terminated") or (status.get("lastState") or {}).get("terminated")),
        sidecar=sidecar,
        startup_seconds=_startup_seconds(spec, status.get("name", "")),
        grace_seconds=spec.get("terminationGracePeriodSeconds") or 0,
    )


def _startup_seconds(spec: Body, name: str) -> int:
    container: Body = next((each for each in spec.get("containers") or () if each.get("name") == name), {})
    probe = container.get("startupProbe") or {}
    return int(probe.get("failureThreshold", 3)) * int(probe.get("periodSeconds", 10)) if probe else 0


def _ending(ended: Body | None) -> Ending | None:
    if not ended:
        return None
    # The end of a log names the error.
    message = "\n".join((ended.get("message") or "")[-MESSAGE_CUT:].splitlines()[-MESSAGE_LINES:])
    return Ending(ended.get("exitCode") or 0, ended.get("reason") or "", message, _lasted(ended))


def _lasted(ended: Body) -> float:
    began, ends = ended.get("startedAt"), ended.get("finishedAt")
    if not began or not ends:
        return 0.0
    return (datetime.fromisoformat(str(ends)) - datetime.fromisoformat(str(began))).total_seconds()


def _cut(text: object) -> str:
    return str(text or "")[:CUT]
