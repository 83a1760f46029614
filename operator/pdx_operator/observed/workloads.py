"""What planner, diagnosis and status need to know of Deployments and pods: frozen records read from plain dicts.

A missing field reads as what Kubernetes means by its absence. Nothing here decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.names import LABEL_REVISION, LABEL_ROLE, LABEL_SERVICE, Role
from pdx_api.verification import Finding

Body = Mapping[str, Any]
"""An object of the Kubernetes API as plain mappings and lists."""

CUT: Final = 1024
"""Characters kept of a text that others wrote."""
MESSAGE_CUT: Final = 4096
"""Characters kept of a termination message: Kubernetes' own limit."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """The engines of one role in one revision, as their Deployment says."""

    name: str
    role: Role
    revision: str
    replicas: int
    """What its spec asks for."""
    ready: int
    """Available engines; may lag behind a smaller `replicas`."""
    settled: bool
    """Its controller has seen the spec, and as many pods of its present template exist as it asks for."""
    pods: int = 0
    """Pods that exist, those that are ending included where the API server counts them."""
    created: str = ""
    """When the Deployment was made (RFC 3339, UTC): orders revisions by age."""
    proven: bool = False
    """All its engines have been available at one time, so those that are not may come back."""
    failure: str = ""
    """Why the API server refuses its pods (quota, admission); empty while it does not."""
    surging: bool = False
    """Its pods are being replaced in place, by more of them than it asks for."""


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The gateway, as its Deployment says."""

    replicas: int
    ready: int
    settled: bool
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A side service of one revision, as its Deployment says."""

    name: str
    """Value of the service label."""
    revision: str
    replicas: int
    ready: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """What an object's gateways have said so far."""

    finding: Finding | None = None
    """None: nothing yet."""
    silent: bool = False
    """Whether all of them have been asked in vain."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str
    """Its termination message, or the end of its log where the pod's policy falls back to that."""


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container that is not ready."""

    name: str
    image: str
    waiting: str
    """Reason for which it does not run; empty while it runs or has ended."""
    message: str
    """Kubernetes' words about that."""
    running_since: str
    """When the present run began (RFC 3339); empty while it does not run."""
    started: bool
    """Its startup probe has succeeded in this run."""
    restarts: int
    ending: Ending | None
    """Of the latest run that has ended."""
    beside: bool = False
    """Whether it is one of the pod's init containers."""


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod. Of a ready one only the head is kept: a cluster may have ten thousand."""

    name: str
    role: str
    """Value of the role label: one of `Role`, or gateway."""
    revision: str
    ready: bool
    terminating: bool = False
    placed: str = ""
    """When the scheduler found it a node, or saw last that there is none (RFC 3339)."""
    node: str = ""
    phase: str = ""
    reason: str = ""
    """Why the pod as a whole failed, for example Evicted or NodeLost."""
    message: str = ""
    unschedulable: str = ""
    """The scheduler's words while it finds no node."""
    containers: tuple[ContainerView, ...] = ()
    """Those that are not ready, init containers first."""


def pool_state(deployment: Body) -> PoolState | None:
    """Read a Deployment; None when it holds no engines."""
    metadata = deployment.get("metadata") or {}
    labels = metadata.get("labels") or {}
    if labels.get(LABEL_ROLE) not in set(Role):
        return None
    status = deployment.get("status") or {}
    return PoolState(
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


def gateway_state(deployment: Body) -> GatewayState:
    """Read the gateway's Deployment."""
    status = deployment.get("status") or {}
    return GatewayState(
        replicas=_replicas(deployment),
        ready=status.get("availableReplicas") or 0,
        settled=_settled(deployment),
        failure=_failure(status),
    )


def service_state(deployment: Body) -> ServiceState | None:
    """Read a Deployment; None when it holds no side service."""
    labels = (deployment.get("metadata") or {}).get("labels") or {}
    if not labels.get(LABEL_SERVICE):
        return None
    status = deployment.get("status") or {}
    return ServiceState(
        name=labels[LABEL_SERVICE],
        revision=labels.get(LABEL_REVISION, ""),
        replicas=_replicas(deployment),
        ready=status.get("availableReplicas") or 0,
        failure=_failure(status),
    )


def pod_view(pod: Body) -> PodView:
    """Read a pod of an engine, of a side service (whose name is its role) or of the gateway."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels = metadata.get("labels") or {}
    ready = _condition(status, "Ready").get("status") == "True"
    role = labels.get(LABEL_ROLE) or labels.get(LABEL_SERVICE, "")
    head = {"name": metadata.get("name", ""), "role": role, "ready": ready}
    revision, terminating = labels.get(LABEL_REVISION, ""), "deletionTimestamp" in metadata
    if ready:
        return PodView(**head, revision=revision, terminating=terminating)
    scheduled = _condition(status, "PodScheduled")
    return PodView(
        **head,
        revision=revision,
        terminating=terminating,
        placed=str(scheduled.get("lastTransitionTime") or metadata.get("creationTimestamp") or ""),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        phase=status.get("phase") or "",
        reason=status.get("reason") or "",
        message=_cut(status.get("message")),
        unschedulable=_cut(scheduled.get("message")) if scheduled.get("status") == "False" else "",
        containers=(
            # An init container that has done its work is not ready either.
            *(
                _container_view(c, beside=True)
                for c in status.get("initContainerStatuses") or ()
                if _is_unready(c, done=0)
            ),
            *(_container_view(c) for c in status.get("containerStatuses") or () if _is_unready(c)),
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


def _container_view(status: Body, *, beside: bool = False) -> ContainerView:
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
        beside=beside,
    )


def _ending(ended: Body | None) -> Ending | None:
    if not ended:
        return None
    # A log says last what went wrong.
    return Ending(ended.get("exitCode") or 0, ended.get("reason") or "", (ended.get("message") or "")[-MESSAGE_CUT:])


def _cut(text: object) -> str:
    return str(text or "")[:CUT]
