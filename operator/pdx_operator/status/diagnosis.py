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

SLOW_MINUTES: Final = (60, 30, 20, 10)
"""Thresholds for the duration of a start in messages: the largest one that has passed is given."""
CREATE_MINUTES: Final = (30, 20, 10, 5)
"""Thresholds for a container that is not created yet; only the largest one counts as a failure.

Pulling an image of 10 GB takes minutes, and the kubelet reports when it fails.
"""
_KUBELET_SECONDS: Final = 15
"""How far the kubelet's times are from those of a pod's spec."""
_STOP_SECONDS: Final = 60
"""How long an engine that has not started takes to end after SIGTERM, preStop hook included."""
_KILLED: Final = 137
"""Exit code after SIGKILL."""
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
class _Cause:
    rank: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class _Group:
    role: str
    revision: str


_ROLES: Final = frozenset(Role)
_SERVICES: Final = "kvTransfer"
"""Field of the spec that describes side services."""
_TITLES: Final = {ROLE_GATEWAY: "gateway", **service_titles()}
"""Names in messages. Without a title, an engine is a "ROLE engine", and a side service a "SERVICE server"."""
_RANKS: Final = ("listed", "image", "config", "volume", "refused", "memory", "start", "crash", "place", "node", "wait")
"""Sorts of causes, the most informative first: a cause with a remedy comes before one without."""


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
    causes = _pod_causes(pods, logs, now, may_use_surge, fields)
    for group, missing, failure in _refusals(pools, gateway, services):
        causes[group, _refused(failure)] += missing
    if not causes:
        return None
    totals = _totals(pools, gateway, pods)
    # Counts do not rank, because they change while the cause stays.
    group, cause = min(causes, key=lambda found: (found[1].rank, found[0].role, found[0].revision, found[1].text))
    several = len({g.revision for g in totals if g.role == group.role}) > 1
    count = sum(n for (other, same), n in causes.items() if other == group and same.reason == cause.reason)
    message = f"{_subject(group, count, totals.get(group, count), several)}: {cause.text}"
    waits = cause.rank == _RANKS.index("wait")
    return Diagnosis(cause.reason, _cut(message), failing=not waits, waits=waits)


def logs_to_read(pods: Sequence[PodView], most: int = 2) -> tuple[ContainerLog, ...]:
    """The logs that explain failed containers: at most one for each role and revision."""
    found: dict[_Group, ContainerLog] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        container = next((c for c in pod.containers if c.ending and c.ending.exit_code), None)
        if container is not None and not pod.ready and not pod.terminating:
            log = ContainerLog(pod.name, container.name, previous=container.restarts > 0)
            found.setdefault(_Group(pod.role, pod.revision), log)
    return tuple(found.values())[:most]


def _pod_causes(
    pods: Sequence[PodView], logs: Mapping[str, str], now: datetime, may_use_surge: bool, fields: Mapping[str, str]
) -> Counter[tuple[_Group, _Cause]]:
    """The number of unready pods by group and cause."""
    causes: Counter[tuple[_Group, _Cause]] = Counter()
    same: dict[object, _Cause | None] = {}
    for pod in pods:
        if pod.ready or pod.terminating:
            continue
        field = fields.get(pod.role, pod.role if pod.role in _ROLES or pod.role == ROLE_GATEWAY else _SERVICES)
        log, group = logs.get(pod.name), _Group(pod.role, pod.revision)
        key = (group, log, _state(pod))
        if key not in same:
            same[key] = _cause(pod, log, now, may_use_surge, field)
        if cause := same[key]:
            causes[group, cause] += 1
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
    message = container.message if container.waiting in _NO_IMAGE | _NO_CONFIG | _NO_START else ""
    ended = ending and replace(ending, seconds=0.0)
    return replace(container, message=message, running_since="", restarts=0, ending=ended), timed_out


def _cause(pod: PodView, log: str | None, now: datetime, may_use_surge: bool, field: str) -> _Cause | None:
    if pod.unschedulable:
        return _unplaced(pod, may_use_surge, field)
    if pod.reason or pod.phase == "Failed":
        why = f": {_sentence(pod.message)}" if pod.message else ""
        return _found("node", pod.reason or "PodFailed", f"its node does not run it ({pod.reason or 'Failed'}){why}")
    for container in pod.containers:
        cause = _not_created(container) or _ended(container, log, field)
        if cause is not None:
            return cause
    return _slow(pod, now)


def _found(kind: str, reason: str, text: str) -> _Cause:
    return _Cause(_RANKS.index(kind), reason, text)


def _unplaced(pod: PodView, may_use_surge: bool, field: str) -> _Cause:
    message = _sentence(pod.unschedulable)
    if "ersistent" in message:
        return _found("volume", "VolumeNotFound", f"its volume does not exist ({message}); create or correct the claim")
    lacking = re.findall(r"Insufficient ([\w./-]+)", message)
    # A missing device is more informative than memory that another node lacks.
    what = next((name for name in lacking if "/" in name), lacking[0] if lacking else "")
    if not what:
        remedy = f"change the nodes, or nodeSelector and tolerations in spec.{field}.podTemplate"
        return _found("place", "Unschedulable", f"no node may take it ({message}); {remedy}")
    surge = ", or set spec.rollout.maxSurge: 0 to replace engines in place" if may_use_surge else ""
    return _found("place", "Unschedulable", f"no node has a free {what} ({message}); free one or add a node{surge}")


_NO_IMAGE: Final = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable"}
_NO_CONFIG: Final = {"CreateContainerConfigError"}
_NO_START: Final = {
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "ContainerCannotRun",
    "PostStartHookError",
}
_DENIED: Final = re.compile(r"unauthorized|authentication|denied|forbidden|\b40[13]\b", re.IGNORECASE)


def _not_created(container: ContainerView) -> _Cause | None:
    image, message = container.image, container.message
    if container.waiting == "InvalidImageName":
        return _found("image", "InvalidImageName", f"{image!r} is not a valid image name; correct it")
    if container.waiting in _NO_IMAGE:
        return _no_image(image, message)
    if container.waiting in _NO_CONFIG:
        missing = re.search(r'(secret|configmap) "([^"]+)" not found', message)
        if missing:
            kind = "Secret" if missing[1] == "secret" else "ConfigMap"
            text = f"the {kind} {missing[2]} does not exist; create it in this namespace"
            return _found("config", f"{kind}NotFound", text)
        return _found("config", "ConfigNotUsable", f"its container cannot be configured: {_sentence(message)}")
    if container.waiting in _NO_START:
        return _found("start", "ContainerCannotStart", f"its container cannot start: {_sentence(message)}")
    return None


def _no_image(image: str, message: str) -> _Cause:
    cause = re.sub(r'^Back-off pulling image "[^"]*"(: )?', "", message)
    cause = re.sub(r"^(ErrImagePull|ImagePullBackOff): ", "", cause)
    # The runtime repeats the image before the registry's message.
    cause = cause.split(f"{image}: ")[-1].removeprefix("failed to resolve reference ").strip()
    why = f": {_sentence(cause)}" if cause else ""
    hint = "correct the name, or set imagePullSecrets in podTemplate if the registry requires credentials"
    if _DENIED.search(cause):
        hint = "if the image is private, set imagePullSecrets in podTemplate"
    return _found("image", "ImagePullFailed", f"the image {image} cannot be pulled{why}; {hint}")


def _ended(container: ContainerView, log: str | None, field: str) -> _Cause | None:
    ending = container.ending
    if ending is None:
        return None
    if ending.reason in _NO_START:
        return _found("start", "ContainerCannotStart", f"its container cannot start: {_sentence(ending.message)}")
    if _timed_out(container, ending):
        text = f"it did not start within {container.startup_seconds} seconds and was stopped"
        return _found("start", "StartupTimedOut", f"{text}; raise spec.engine.startupSeconds, or load the model faster")
    excerpt = engine_log.read(log or ending.message)
    if (failure := excerpt.failure) is not None:
        return _found("listed", failure.reason, f"{excerpt.line.rstrip('.')}; {failure.advice}")
    subject = f"its sidecar {container.name}" if container.sidecar else "it"
    if ending.reason == "OOMKilled":
        if container.sidecar or field == _SERVICES:  # only an overlay sets their limit
            limit = f"the limit in spec.{field}.podTemplate"
        else:
            limit = f"spec.{field}.resources.limits.memory"
        return _found("memory", "OutOfMemory", f"{subject} exceeded its memory limit and was killed; raise {limit}")
    why = f", saying: {excerpt.line}" if excerpt.line else "; read its log"
    return _found("crash", "Crashing", f"{subject} ends with exit code {ending.exit_code}{why}")


def _timed_out(container: ContainerView, ending: Ending) -> bool:
    """Whether the kubelet has stopped a run because its startup probe gave up."""
    limit, killed = container.startup_seconds, ending.exit_code == _KILLED
    if not limit or ending.reason == "OOMKilled":
        return False
    after = ending.seconds - limit
    return -_KUBELET_SECONDS <= after <= _STOP_SECONDS or (
        killed and abs(after - container.grace_seconds) <= _KUBELET_SECONDS
    )


def _slow(pod: PodView, now: datetime) -> _Cause | None:
    running = next((c.running_since for c in pod.containers if c.running_since and not c.started), "")
    if running:
        minutes = next((m for m in SLOW_MINUTES if _minutes(running, now) >= m), 0)
        more = f" for more than {minutes} minutes" if minutes else ""
        return _found("wait", "Loading", f"it has been starting{more}" if more else "it is starting")
    if not pod.node or any(c.running_since for c in pod.containers):
        return None
    minutes = next((m for m in CREATE_MINUTES if _minutes(pod.placed, now) >= m), 0)
    text = f"its container has not been created for more than {minutes} minutes; kubectl describe pod {pod.name}"
    kind = "volume" if minutes == max(CREATE_MINUTES) else "wait"
    what = f"{text} shows what is missing (an image being pulled, a volume)"
    return _found(kind, "ContainerNotCreated", what) if minutes else None


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


def _refused(failure: str) -> _Cause:
    # Each attempt has another pod name.
    message = re.sub(r'^pods "[^"]*" is forbidden: ', "", failure)
    if "exceeded quota" in message:
        text = f"the namespace's quota refuses its pod ({_sentence(message)}); raise the quota or free something"
        return _found("refused", "QuotaExceeded", text)
    return _found("refused", "PodRefused", f"the cluster refuses its pod: {_sentence(message)}")


def _totals(
    pools: Sequence[ObservedPool], gateway: ObservedGateway | None, pods: Sequence[PodView]
) -> Mapping[_Group, int]:
    totals = Counter(_Group(pod.role, pod.revision) for pod in pods if not pod.terminating)
    for pool in pools:
        if pool.replicas:
            totals[_Group(pool.role, pool.revision)] = pool.replicas
    if gateway is not None:
        totals[_Group(ROLE_GATEWAY, "")] = gateway.replicas
    return totals


def _subject(group: _Group, count: int, total: int, several_revisions: bool) -> str:
    kind = _TITLES.get(group.role) or f"{group.role} {'engine' if group.role in _ROLES else 'server'}"
    of = f" of revision {group.revision}" if several_revisions else ""
    total = max(count, total)
    return f"the {kind}{of}" if total == 1 else f"{count} of {total} {kind}s{of}"


def _sentence(text: str) -> str:
    """The first sentence of a text, on one line."""
    return re.split(r"\.\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".")


def _cut(text: str) -> str:
    return text if len(text) <= CUT else text[: CUT - 1] + "…"
