"""Why engines, gateways or side services are not ready: one sentence with a remedy.

A message changes only when the cause changes. A crashing engine alternates between waiting, running and terminated, and
a failing pull between pulling and back-off, so a message uses only what these states have in common.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from pdx_api.connectors import service_titles
from pdx_api.names import ROLE_GATEWAY, Role
from pdx_operator.observed import engine_log
from pdx_operator.observed.workloads import (
    ContainerView,
    Ending,
    ObservedGateway,
    ObservedPool,
    ObservedService,
    PodView,
)
from pdx_operator.status.causes import SERVICES, Cause, found, sentence
from pdx_operator.status.image_pulls import NO_IMAGE, no_image
from pdx_operator.status.refusals import refused
from pdx_operator.status.scheduling import gated, unplaced

SLOW_MINUTES: Final = (60, 30, 20, 10)
"""Thresholds for the duration of a start in messages: the largest one that has passed is given."""
CREATE_MINUTES: Final = (30, 20, 10, 5)
"""Thresholds for a container that is not created yet; only the largest one counts as a failure.

Pulling an image of 10 GB takes minutes, and the kubelet reports when it fails.
"""
_OVERDUE_MINUTES: Final = 1
"""After its grace period, in which a pod may still be terminating: the kubelet kills its containers before that."""
_RECENT_MINUTES: Final = 10
"""How long the end of a pod may explain that its successor is not ready yet."""
ENDED: Final = frozenset({"Failed", "Succeeded"})
"""Phases of a pod that no controller counts any more."""
_KUBELET_SECONDS: Final = 15
"""How far the kubelet's times are from those of a pod's spec."""
_STOP_SECONDS: Final = 60
"""How long an engine that has not started takes to end after SIGTERM, preStop hook included."""
_KILLED: Final = 137
"""Exit code after SIGKILL."""
CANNOT_END: Final = "PodCannotEnd"
"""Reason of a terminating pod whose grace period is long over."""
CUT: Final = 700
"""Characters of a diagnosis; an Event's note may hold 1024."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why something is not ready."""

    reason: str
    """One word in CamelCase."""
    message: str
    """One sentence, without a full stop."""
    failing: bool = True
    """False while no action is needed."""
    waits: bool = False
    """True while it is enough to wait: no problem, but the reason of a delay."""


@dataclass(frozen=True, slots=True)
class ContainerLog:
    """A log that may contain the cause of a failure."""

    pod: str
    container: str
    previous: bool
    """The log of the previous run, not of the present one."""


@dataclass(frozen=True, slots=True)
class _Group:
    role: str
    revision: str


_ROLES: Final = frozenset(Role)
_TITLES: Final = {ROLE_GATEWAY: "gateway", **service_titles()}
"""Names in messages. Without a title, an engine is a "ROLE engine", and a side service a "SERVICE server"."""


def diagnose(
    pools: Sequence[ObservedPool],
    gateway: ObservedGateway | None,
    pods: Sequence[PodView],
    logs: Mapping[str, str],
    *,
    now: datetime,
    may_use_surge: bool = False,
    fields: Mapping[str, str] = MappingProxyType({}),
    services: Sequence[ObservedService] = (),
) -> Diagnosis | None:
    """The most informative cause, with the number of pods that it affects; None without a cause.

    `logs` contains the last lines of a failed run by the name of the pod; without them the termination message is read.
    `may_use_surge`: a rollout may need more devices than the desired replicas. `fields` names the field of the spec
    that describes a role's engines, if it is not the role.
    """
    totals = _totals(pools, gateway, services)
    present = [pod for pod in pods if pod.phase not in ENDED]
    causes = _pod_causes(present, logs, now, may_use_surge, fields)
    for group, missing, failure in _refusals(pools, gateway, services):
        causes[group, refused(failure, _field(group.role, fields), may_use_surge=may_use_surge)] += missing
    explained = {group for group, _ in causes}
    causes += _ended_pods(pods, {group: n for group, n in totals.items() if group not in explained}, now)
    if not causes:
        return None
    totals = {**Counter(_Group(pod.role, pod.revision) for pod in present if not pod.terminating), **totals}
    # Counts do not rank, because they change while the cause stays.
    group, cause = min(causes, key=lambda each: (each[1].rank, each[0].role, each[0].revision, each[1].text))
    several = len({g.revision for g in totals if g.role == group.role}) > 1
    count = sum(n for (other, same), n in causes.items() if other == group and same.reason == cause.reason)
    message = f"{_subject(group, count, totals.get(group, count), several)}: {cause.text}"
    return Diagnosis(cause.reason, _cut(message), failing=not cause.waits, waits=cause.waits)


def logs_to_read(pods: Sequence[PodView], most: int = 2) -> tuple[ContainerLog, ...]:
    """The logs that explain failed containers: at most one for each role and revision."""
    logs: dict[_Group, ContainerLog] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        container = next((c for c in pod.containers if c.ending and c.ending.exit_code), None)
        if container is not None and not pod.ready and not pod.terminating and pod.phase not in ENDED:
            log = ContainerLog(pod.name, container.name, previous=container.restarts > 0)
            logs.setdefault(_Group(pod.role, pod.revision), log)
    return tuple(logs.values())[:most]


def _pod_causes(
    pods: Sequence[PodView], logs: Mapping[str, str], now: datetime, may_use_surge: bool, fields: Mapping[str, str]
) -> Counter[tuple[_Group, Cause]]:
    """The number of unready pods by group and cause."""
    causes: Counter[tuple[_Group, Cause]] = Counter()
    same: dict[object, Cause | None] = {}
    for pod in pods:
        log, group = logs.get(pod.name), _Group(pod.role, pod.revision)
        if pod.terminating:
            if _minutes(pod.due, now) >= _OVERDUE_MINUTES:
                causes[group, _stuck(pod)] += 1
            continue
        if pod.ready:
            continue
        field = _field(pod.role, fields)
        key = (group, log, _state(pod))
        if key not in same:
            same[key] = _cause(pod, log, now, may_use_surge, field)
        if cause := same[key]:
            causes[group, cause] += 1
    return causes


def _field(role: str, fields: Mapping[str, str]) -> str:
    """The field of the spec that describes the pods of a role."""
    return fields.get(role, role if role in _ROLES or role == ROLE_GATEWAY else SERVICES)


def _stuck(pod: PodView) -> Cause:
    where = f"; if its node {pod.node} is NotReady, repair or delete the node, otherwise" if pod.node else ";"
    text = f"the pod {pod.name} should have ended by {pod.due}{where} kubectl delete pod {pod.name} --force"
    return found("stuck", CANNOT_END, text)


def _ended_pods(
    pods: Sequence[PodView], unexplained: Mapping[_Group, int], now: datetime
) -> Counter[tuple[_Group, Cause]]:
    """Why the pods of a group ended, where too few are ready and none of those that exist shows a cause.

    Kubernetes keeps pods that have ended, and replaces them. An old one explains nothing once its successor exists.
    """
    causes: Counter[tuple[_Group, Cause]] = Counter()
    for group, desired in unexplained.items():
        own = [pod for pod in pods if (pod.role, pod.revision) == (group.role, group.revision) and not pod.terminating]
        present = [pod for pod in own if pod.phase not in ENDED]
        ended = sorted((pod for pod in own if pod.phase in ENDED), key=lambda pod: pod.placed)
        if not ended or sum(pod.ready for pod in present) >= desired:
            continue
        last = ended[-1]
        if len(present) < desired or _minutes(last.placed, now) < _RECENT_MINUTES:
            why = f": {sentence(last.message)}" if last.message else ""
            text = f"its node does not run it ({last.reason or last.phase}){why}"
            causes[group, found("node", last.reason or "PodFailed", text)] += 1
    return causes


def _state(pod: PodView) -> object:
    """What the cause of a failed pod follows from; equal for pods that failed in the same way at different times."""
    if not any(container.ending for container in pod.containers):
        return pod
    parts = (_containers_state(container) for container in pod.containers)
    return pod.unschedulable, pod.reason, pod.phase, pod.message, tuple(parts)


def _containers_state(container: ContainerView) -> object:
    ending = container.ending
    timed_out = ending is not None and _timed_out(container, ending)
    # The kubelet's message about a crash contains the name of the pod.
    message = container.message if container.waiting in NO_IMAGE | _NO_CONFIG | _NO_START else ""
    ended = ending and replace(ending, seconds=0.0)
    return replace(container, message=message, running_since="", restarts=0, ending=ended), timed_out


def _cause(pod: PodView, log: str | None, now: datetime, may_use_surge: bool, field: str) -> Cause | None:
    if pod.gated:
        return gated(pod.gates)
    if pod.unschedulable:
        return unplaced(pod.unschedulable, field, may_use_surge=may_use_surge)
    if pod.reason:
        why = f": {sentence(pod.message)}" if pod.message else ""
        return found("node", pod.reason or "PodFailed", f"its node does not run it ({pod.reason}){why}")
    for container in pod.containers:
        cause = _not_created(container) or _ended(container, log, field)
        if cause is not None:
            return cause
    return _slow(pod, now)


_NO_CONFIG: Final = {"CreateContainerConfigError"}
_NO_START: Final = {
    "ConfigPodSandboxError",
    "CreateContainerError",
    "CreatePodSandboxError",
    "PreCreateHookError",
    "PreStartHookError",
    "RunContainerError",
    "StartError",
    "ContainerCannotRun",
    "PostStartHookError",
}


def _not_created(container: ContainerView) -> Cause | None:
    image, message = container.image, container.message
    if container.waiting == "InvalidImageName":
        return found("image", "InvalidImageName", f"{image!r} is not a valid image name; correct it")
    if container.waiting in NO_IMAGE:
        return no_image(image, container.waiting, message)
    if container.waiting in _NO_CONFIG:
        missing = re.search(r'(secret|configmap) "([^"]+)" not found', message)
        if missing:
            kind = "Secret" if missing[1] == "secret" else "ConfigMap"
            text = f"the {kind} {missing[2]} does not exist; create it in this namespace"
            return found("config", f"{kind}NotFound", text)
        text = f"its container cannot be configured: {sentence(message)}"
        if key := re.search(r"couldn't find key (\S+) in (Secret|ConfigMap) (?:\S+/)?(\S+)", message):
            text += f"; add the key {key[1]} to the {key[2]} {key[3]}, or correct the key in the spec "
            text += "(model.tokenSecretRef, engine.apiKeySecretRef, engine.env, podTemplate)"
        elif "run as root" in message or "runAsNonRoot" in message:
            text += "; set runAsUser in podTemplate, or use an image with a user of its own"
        return found("config", "ConfigNotUsable", text)
    if container.waiting in _NO_START:
        return found("start", "ContainerCannotStart", f"its container cannot start: {sentence(message)}")
    return None


def _ended(container: ContainerView, log: str | None, field: str) -> Cause | None:
    ending = container.ending
    if ending is None:
        return None
    if ending.reason in _NO_START:
        return found("start", "ContainerCannotStart", f"its container cannot start: {sentence(ending.message)}")
    if _timed_out(container, ending):
        text = f"it did not start within {container.startup_seconds} seconds and was stopped"
        return found("start", "StartupTimedOut", f"{text}; raise spec.engine.startupSeconds, or load the model faster")
    excerpt = engine_log.read(log or ending.message)
    if (failure := excerpt.failure) is not None:
        return found("listed", failure.reason, f"{excerpt.line.rstrip('.')}; {failure.advice}")
    subject = f"its sidecar {container.name}" if container.sidecar else "it"
    if ending.reason == "OOMKilled":
        if container.sidecar or field == SERVICES:  # only an overlay sets their limit
            limit = f"the limit in spec.{field}.podTemplate"
        else:
            limit = f"spec.{field}.resources.limits.memory"
        return found("memory", "OutOfMemory", f"{subject} exceeded its memory limit and was killed; raise {limit}")
    why = f", saying: {excerpt.line}" if excerpt.line else "; read its log"
    return found("crash", "Crashing", f"{subject} ends with exit code {ending.exit_code}{why}")


def _timed_out(container: ContainerView, ending: Ending) -> bool:
    """Whether the kubelet has stopped a run because its startup probe gave up."""
    limit, killed = container.startup_seconds, ending.exit_code == _KILLED
    if not limit or ending.reason == "OOMKilled":
        return False
    after = ending.seconds - limit
    return -_KUBELET_SECONDS <= after <= _STOP_SECONDS or (
        killed and abs(after - container.grace_seconds) <= _KUBELET_SECONDS
    )


def _slow(pod: PodView, now: datetime) -> Cause | None:
    running = next((c.running_since for c in pod.containers if c.running_since and not c.started), "")
    if running:
        minutes = next((m for m in SLOW_MINUTES if _minutes(running, now) >= m), 0)
        more = f" for more than {minutes} minutes" if minutes else ""
        return found("wait", "Loading", f"it has been starting{more}" if more else "it is starting")
    if not pod.node or any(c.running_since for c in pod.containers):
        return None
    minutes = next((m for m in CREATE_MINUTES if _minutes(pod.placed, now) >= m), 0)
    text = f"its container has not been created for more than {minutes} minutes; kubectl describe pod {pod.name}"
    kind = "volume" if minutes == max(CREATE_MINUTES) else "wait"
    what = (
        f"{text} shows what is missing (an image that is being pulled, or a volume: with ReadWriteOnce another node "
        "may hold it, so use ReadWriteMany)"
    )
    return found(kind, "ContainerNotCreated", what) if minutes else None


def _minutes(since: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(since)).total_seconds() / 60 if since else 0.0


def _refusals(
    pools: Sequence[ObservedPool], gateway: ObservedGateway | None, services: Sequence[ObservedService]
) -> Iterator[tuple[_Group, int, str]]:
    for pool in pools:
        if pool.failure:
            yield _Group(pool.role, pool.revision), max(1, pool.replicas - pool.pods), pool.failure
    if gateway is not None and gateway.failure:
        yield _Group(ROLE_GATEWAY, ""), max(1, gateway.replicas - gateway.ready), gateway.failure
    for service in services:
        if service.failure:
            yield _Group(service.name, service.revision), max(1, service.replicas - service.ready), service.failure


def _totals(
    pools: Sequence[ObservedPool], gateway: ObservedGateway | None, services: Sequence[ObservedService]
) -> dict[_Group, int]:
    """The desired pods of each group."""
    totals = {_Group(pool.role, pool.revision): pool.replicas for pool in pools if pool.replicas}
    totals |= {_Group(service.name, service.revision): service.replicas for service in services}
    return totals if gateway is None else {**totals, _Group(ROLE_GATEWAY, ""): gateway.replicas}


def _subject(group: _Group, count: int, total: int, several_revisions: bool) -> str:
    kind = _TITLES.get(group.role) or f"{group.role} {'engine' if group.role in _ROLES else 'server'}"
    of = f" of revision {group.revision}" if several_revisions else ""
    total = max(count, total)
    return f"the {kind}{of}" if total == 1 else f"{count} of {total} {kind}s{of}"


def _cut(text: str) -> str:
    return text if len(text) <= CUT else text[: CUT - 1] + "…"
