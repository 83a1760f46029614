"""Builds the status of an object from facts: conditions, counts, revision; and selects the changes that become Events.

The status of a settled object never changes, so that nothing is written: repeated transfer probes do not show in it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from pdx_api.names import LABEL_DEPLOYMENT, ConditionType, Mode, Role
from pdx_api.spec.status import Condition, GatewayStatus, RoleStatus, Status, StatusPart
from pdx_api.spec.types import PDDeployment, Spec
from pdx_api.verification import Finding, Verdict
from pdx_api.vllm.versions import minor, stated, warning
from pdx_operator.kube.resources import Event
from pdx_operator.observed.workloads import ObservedGateway, ObservedPool
from pdx_operator.plan.rollout import Phase
from pdx_operator.render.http_route import gateway_url
from pdx_operator.render.spec_fields import field_of
from pdx_operator.status.causes import INVALID
from pdx_operator.status.diagnosis import CANNOT_END
from pdx_operator.status.facts import Facts
from pdx_operator.status.notice import without_notice

CRD_TOO_OLD: Final = "CRDTooOld"
SERVING: Final = "Serving"
AS_SPECIFIED: Final = "AsSpecified"
PAUSED: Final = "Paused"
NOTHING_FOUND: Final = "NothingFound"

_Condition = Mapping[str, Any]
"""A condition of a status; empty when the status lacks it."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Status, reason and message of a condition."""

    holds: bool | None
    """None: Unknown."""
    reason: str
    message: str


def build(facts: Facts, old: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The new status as plain JSON; `old` is the present status, which provides what has not changed."""
    outcomes = {
        ConditionType.AVAILABLE: _available(facts),
        ConditionType.READY: _ready(facts),
        ConditionType.PROGRESSING: _progressing(facts, _condition(old, ConditionType.PROGRESSING)),
        ConditionType.DEGRADED: _degraded(facts, _condition(old, ConditionType.DEGRADED)),
        ConditionType.KV_TRANSFER_VERIFIED: _verified(facts, _condition(old, ConditionType.KV_TRANSFER_VERIFIED)),
    }
    conditions = [_dated(kind, outcome, facts.generation, old, now) for kind, outcome in outcomes.items()]
    reason = _reason(outcomes)
    if facts.plan.deployment is None or facts.plan.rollout is None:
        # With an invalid spec the children stay as they are, and so does the rest of the status.
        return {**old, **_dump(Status(observed_generation=facts.generation, reason=reason, conditions=conditions))}
    status = _status(facts, facts.plan.deployment, facts.plan.rollout.revision, conditions)
    return _dump(status.model_copy(update={"operator": old.get("operator"), "reason": reason}))


def _reason(outcomes: Mapping[ConditionType, _Outcome]) -> str | None:
    """The reason that `kubectl get` shows; None while nothing is wrong."""
    degraded, ready = outcomes[ConditionType.DEGRADED], outcomes[ConditionType.READY]
    verified = outcomes[ConditionType.KV_TRANSFER_VERIFIED]
    wrong = (degraded, degraded.holds is True), (ready, ready.holds is not True), (verified, verified.holds is False)
    return next((outcome.reason for outcome, is_wrong in wrong if is_wrong), None)


def crd_too_old(missing: Sequence[str], old: Mapping[str, Any], generation: int, now: datetime) -> dict[str, Any]:
    """The status while the CRD lacks fields: only Degraded changes."""
    text = (
        f"the CRD lacks {', '.join(missing[:3])}{' and more' if missing[3:] else ''}; apply the CRD of the operator's "
    )
    outcome = _Outcome(True, CRD_TOO_OLD, f"{text}version; until then the operator changes nothing")
    degraded = _dump(_dated(ConditionType.DEGRADED, outcome, generation, old, now))
    kept = without_notice(old).get("conditions") or ()
    others = [each for each in kept if each["type"] != ConditionType.DEGRADED]
    return {**old, "conditions": [*others, degraded]}


def transitions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Event]:
    """The changes between two statuses that are worth an Event: none while an object stays as it is."""

    def both(kind: ConditionType) -> tuple[_Condition, _Condition]:
        return _condition(old, kind), _condition(new, kind)

    return [
        *_became_wrong(*both(ConditionType.DEGRADED), "True"),
        *_rollout_events(*both(ConditionType.PROGRESSING)),
        *_availability_events(*both(ConditionType.AVAILABLE)),
        *_transfer_events(*both(ConditionType.KV_TRANSFER_VERIFIED)),
    ]


def _became_wrong(was: _Condition, now: _Condition, status: str) -> Iterator[Event]:
    """A condition of something wrong that is new, or has a new reason."""
    if now.get("status") == status and (was.get("status"), was.get("reason")) != (status, now.get("reason")):
        yield Event(now["reason"], now["message"], warning=True)


def _rollout_events(was: _Condition, now: _Condition) -> Iterator[Event]:
    if now.get("reason") == Phase.ROLLING and was.get("reason") not in (Phase.ROLLING, Phase.STOPPED):
        yield Event("RolloutStarted", now["message"])
    if now.get("reason") == Phase.COMPLETE and was.get("reason") in (*(Phase.ROLLING, Phase.STOPPED, Phase.RETIRING),):
        yield Event("RolloutCompleted", now["message"])


def _availability_events(was: _Condition, now: _Condition) -> Iterator[Event]:
    if now.get("status") == "True" and was.get("status") != "True":
        yield Event("Available", now["message"])
    if now.get("status") == "False" and was.get("status") == "True":
        yield Event("Unavailable", now["message"], warning=True)


def _transfer_events(was: _Condition, now: _Condition) -> Iterator[Event]:
    yield from _became_wrong(was, now, "False")
    if now.get("status") == "True" and was.get("status") == "False":
        yield Event("KVTransferRestored", now["message"])


def _available(facts: Facts) -> _Outcome:
    """Requests are answered."""
    deployment, gateway = facts.plan.deployment, facts.plan.workloads.gateway
    if deployment is None:
        return _Outcome(None, INVALID, "the spec is invalid; what runs stays as it is")
    spec, name = deployment.spec, deployment.metadata.name
    missing = (_missing_gateway(gateway) if spec.gateway.enabled else None) or _missing_servers(facts, spec)
    if missing is not None:
        return missing
    if not spec.gateway.enabled:
        text = (
            f"engines are ready; without a gateway, a router of yours uses the pods labelled {LABEL_DEPLOYMENT}={name}"
        )
        return _Outcome(True, SERVING, text)
    return _Outcome(True, SERVING, f"requests are served at {gateway_url(spec, name, facts.namespace)}")


def _ready(facts: Facts) -> _Outcome:
    """Requests are answered, and everything is as specified."""
    if facts.plan.deployment is None:
        return _Outcome(False, INVALID, facts.plan.invalid)
    available = _available(facts)
    if not available.holds:
        return available
    if (missing := _missing_pair(facts, facts.plan.deployment.spec)) is not None:
        return missing
    progressing = _progress_unless_paused(facts)
    # What is served does not need a pod that cannot end.
    stuck = progressing.reason == Phase.RETIRING and any(each.reason == CANNOT_END for each in facts.problems)
    if (progressing.holds or progressing.reason == Phase.STOPPED) and not stuck:
        return _Outcome(False, progressing.reason, progressing.message)
    if facts.plan.deployment.spec.paused:
        return _Outcome(None, PAUSED, "spec.paused is true: the operator keeps nothing as specified")
    pods = "engines and gateway pods" if facts.plan.deployment.spec.gateway.enabled else "engines"
    notes = _warning(facts.plan.deployment.spec, facts.transfer.finding)
    return _Outcome(True, AS_SPECIFIED, "; ".join((f"all {pods} are ready", *notes)))


def _warning(spec: Spec, finding: Finding | None) -> Iterator[str]:
    """What is uncertain or wrong about the engines' version of vLLM, if anything."""
    expected = stated(spec.engine.version, spec.engine.image)
    if text := warning(expected):
        yield text.removesuffix(".")
    versions = finding.versions if finding is not None else ()
    runs = sorted({minor(each) for each in versions} - {""})
    apart = _apart(spec, versions)
    if len(different := max(runs, apart, key=len)) > 1:
        pairs = ": only engines of one version pair" if len(apart) > 1 else ""
        yield f"engines run vLLM {' and '.join(different)}{pairs}"
    if expected and runs and expected not in runs:
        who = "the tag of the image states" if spec.engine.version is None else "spec.engine.version is"
        yield f"engines run vLLM {' and '.join(runs)}, but {who} {expected}; correct spec.engine.version"


def _apart(spec: Spec, versions: Iterable[str]) -> list[str]:
    """The versions, or the parts of them, that keep engines from pairing."""
    if spec.mode is Mode.AGGREGATED:
        return []
    any_patch = spec.connector.any_patch(spec.kv_transfer.config)
    return sorted({spec.connector.wire(each, any_patch=any_patch) for each in versions} - {""})


def _missing_gateway(gateway: ObservedGateway | None) -> _Outcome | None:
    if gateway is not None and min(gateway.ready, gateway.replicas):
        return None
    if gateway is not None and gateway.replicas == 0:
        return _Outcome(False, "ScaledToZero", "the gateway has no replicas; set spec.gateway.replicas")
    return _Outcome(False, "GatewayNotReady", "no gateway pod is ready")


def _ready_revisions(pools: Iterable[ObservedPool]) -> Mapping[Role, set[str]]:
    ready: dict[Role, set[str]] = {role: set() for role in Role}
    for pool in pools:
        if min(pool.ready, pool.replicas):
            ready[pool.role].add(pool.revision)
    return ready


def _missing_servers(facts: Facts, spec: Spec) -> _Outcome | None:
    """Engines that answer clients."""
    ready = _ready_revisions(facts.plan.workloads.pools.values())
    if ready[Role.DECODE] | ready[Role.AGGREGATED]:
        return None
    server = Role.DECODE if spec.mode is Mode.DISAGGREGATED else Role.AGGREGATED
    if _engines(facts, spec)[server] == 0:
        field = field_of(spec, server)
        return _Outcome(False, "ScaledToZero", f"there are no {server} engines; set spec.{field}.replicas")
    return _Outcome(False, f"{server.capitalize()}NotReady", f"no {server} engine is ready")


def _missing_pair(facts: Facts, spec: Spec) -> _Outcome | None:
    ready = _ready_revisions(facts.plan.workloads.pools.values())
    splits = _engines(facts, spec).get(Role.PREFILL, 0) > 0
    if not splits or ready[Role.AGGREGATED] or ready[Role.PREFILL] & ready[Role.DECODE]:
        return None
    if not ready[Role.PREFILL]:
        return _Outcome(False, "PrefillNotReady", "no prefill engine is ready; decode engines serve whole requests")
    text = "the ready prefill and decode engines have different revisions; decode engines serve whole requests"
    return _Outcome(False, "NoPair", text)


def _progressing(facts: Facts, old: _Condition) -> _Outcome:
    """The progress, and what it waits for."""
    progress = _progress(facts)
    waits = next((problem.message for problem in facts.problems if problem.waits), "")
    if not facts.inspected and str(old.get("message", "")).startswith(f"{progress.message}; "):
        return replace(progress, message=old["message"])
    return replace(progress, message=f"{progress.message}; {waits}") if waits else progress


def _progress(facts: Facts) -> _Outcome:
    if facts.plan.deployment is None or facts.plan.rollout is None:
        return _Outcome(False, INVALID, "nothing is changed until the spec is valid")
    if facts.plan.deployment.spec.paused:
        return _Outcome(None, PAUSED, "spec.paused is true: the operator changes nothing")
    return _progress_unless_paused(facts)


def _progress_unless_paused(facts: Facts) -> _Outcome:
    plan, gateway = facts.plan, facts.plan.workloads.gateway
    assert plan.rollout is not None, "only of a valid spec"
    if not plan.rollout.done:
        return _Outcome(plan.rollout.phase is not Phase.STOPPED, plan.rollout.phase, plan.rollout.message)
    if plan.gateway_waits:
        text = f"{plan.rollout.message}; the gateway's upgrade waits for those of other PDDeployments"
        return _Outcome(True, "GatewayUpgradeWaiting", text)
    if not plan.has_no_gateway and not plan.gateway_is_complete:
        count = f"{gateway.ready} of {gateway.replicas}" if gateway else "none"
        return _Outcome(True, "GatewayStarting", f"{plan.rollout.message}; {count} gateway pods are ready")
    return _Outcome(False, plan.rollout.phase, plan.rollout.message)


def _degraded(facts: Facts, old: _Condition) -> _Outcome:
    if facts.plan.deployment is None:
        return _Outcome(True, INVALID, facts.plan.invalid)
    failing = next((problem for problem in facts.problems if problem.failing), None)
    if failing is not None:
        return _Outcome(True, failing.reason, failing.message)
    if not facts.inspected and old.get("observedGeneration") == facts.generation:
        return _unchanged(old)
    reverted = next((problem for problem in facts.problems if not problem.waits), None)
    if reverted is not None:
        return _Outcome(None, reverted.reason, reverted.message)
    return _Outcome(False, NOTHING_FOUND, "nothing is wrong")


def _verified(facts: Facts, old: _Condition) -> _Outcome:
    if facts.plan.deployment is None:
        return _unchanged(old) if old else _Outcome(None, INVALID, "the spec is invalid")
    spec, finding = facts.plan.deployment.spec, facts.transfer.finding
    if spec.mode is Mode.AGGREGATED:
        return _Outcome(None, "Aggregated", "aggregated engines do both prefill and decode: no KV is transferred")
    if not spec.gateway.enabled:
        return _Outcome(None, "NoGateway", "spec.gateway.enabled is false: nothing sends transfer probes")
    if not spec.kv_transfer.verification.period_seconds:
        return _Outcome(
            None, "Disabled", "spec.kvTransfer.verification.periodSeconds is 0: the gateway sends no transfer probes"
        )
    if finding is not None:
        return _found(finding, spec.kv_transfer.verification.period_seconds)
    if facts.transfer.unreachable:
        return _Outcome(None, "GatewayUnreachable", "the operator cannot reach the admin port of any gateway")
    if old.get("reason") not in (None, INVALID, "NoGateway", "Aggregated", "Disabled"):
        # The operator has just started: the last result is still valid.
        return _unchanged(old)
    return _Outcome(None, "NotVerifiedYet", "no gateway has reported a transfer probe yet")


def _unchanged(old: _Condition) -> _Outcome:
    return _Outcome({"True": True, "False": False}.get(old["status"]), old["reason"], old["message"])


def _found(finding: Finding, seconds: float) -> _Outcome:
    if finding.verdict is Verdict.VERIFIED:
        number = f"{finding.pairs} pairs" if finding.pairs != 1 else "1 pair"
        which = "all pairs" if finding.pairs == finding.possible else "which include every engine"
        text = f"KV transfer works in {number} of prefill and decode engines ({which}); probed every {seconds} s"
        return _Outcome(True, "Verified", text)
    broken = next(iter(finding.broken), None)
    if broken is not None and finding.verdict is Verdict.UNKNOWN:
        return _Outcome(None, broken.cause, broken.sentence)
    if broken is not None:
        more = f" ({finding.broken_pairs} of {finding.possible} pairs)" if finding.possible > 1 else ""
        return _Outcome(False, broken.cause, f"KV does not move{more}: {broken.sentence}")
    return _Outcome(None, "NotVerifiedYet", finding.why)


def _status(facts: Facts, deployment: PDDeployment, revision: str, conditions: list[Condition]) -> Status:
    spec, pools = deployment.spec, facts.plan.workloads.pools.values()
    split = spec.mode is Mode.DISAGGREGATED
    return Status(
        observed_generation=facts.generation,
        url=gateway_url(spec, deployment.metadata.name, facts.namespace),
        mode=spec.mode,
        connector=spec.connector.name if split else None,
        order=spec.order if split else None,
        image=spec.engine.image,
        revision=revision,
        roles=[_role_status(role, desired, pools, revision) for role, desired in _engines(facts, spec).items()],
        gateway=_gateway_status(facts.plan.workloads.gateway, spec) if spec.gateway.enabled else None,
        conditions=conditions,
    )


def _engines(facts: Facts, spec: Spec) -> dict[Role, int]:
    """The desired number of engines of each role."""
    return {role: facts.plan.engines.get(role, pool.initial_replicas) for role, pool in spec.pools().items()}


def _role_status(role: Role, desired: int, pools: Iterable[ObservedPool], revision: str) -> RoleStatus:
    own = [pool for pool in pools if pool.role is role]
    ready = sum(min(pool.ready, pool.replicas) for pool in own)
    return RoleStatus(
        role=role,
        desired_replicas=desired,
        replicas=sum(pool.pods for pool in own),
        ready_replicas=ready,
        updated_replicas=sum(pool.pods for pool in own if pool.revision == revision),
        revision=revision,
        ready=f"{ready}/{desired}",
    )


def _gateway_status(gateway: ObservedGateway | None, spec: Spec) -> GatewayStatus:
    if gateway is None:
        ready, desired = 0, 1 if spec.gateway.replicas is None else spec.gateway.replicas
    else:
        ready, desired = min(gateway.ready, gateway.replicas), gateway.replicas
    return GatewayStatus(desired_replicas=desired, ready_replicas=ready, ready=f"{ready}/{desired}")


def _dated(kind: ConditionType, outcome: _Outcome, generation: int, old: Mapping[str, Any], now: datetime) -> Condition:
    statuses: dict[bool | None, Literal["True", "False", "Unknown"]] = {True: "True", False: "False", None: "Unknown"}
    status = statuses[outcome.holds]
    before = _condition(old, kind)
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return Condition(
        type=kind,
        status=status,
        reason=outcome.reason,
        message=outcome.message,
        observed_generation=generation,
        last_transition_time=since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _condition(status: Mapping[str, Any], kind: ConditionType) -> _Condition:
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _dump(status: StatusPart) -> dict[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
