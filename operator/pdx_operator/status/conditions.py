"""Builds the status of an object from facts: conditions, counts, revision; and selects the changes that become Events.

The status of a settled object never changes, so that nothing is written: repeated transfer probes do not show in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from pdx_api.names import ConditionType, Mode, Role, gateway_name
from pdx_api.spec.status import Condition, GatewayStatus, PoolStatus, Status, StatusPart
from pdx_api.spec.types import PDDeployment
from pdx_api.verification import Finding, Verdict
from pdx_operator.observed.workloads import ObservedGateway, ObservedPool
from pdx_operator.plan.rollout import Phase
from pdx_operator.render.spec_fields import field_of
from pdx_operator.status.facts import Facts

CRD_TOO_OLD: Final = "CRDTooOld"
INVALID: Final = "InvalidSpec"
SERVING: Final = "Serving"
NOTHING_FOUND: Final = "NothingFound"

_Condition = Mapping[str, Any]
"""A condition of a status; empty when the status lacks it."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a condition that becomes an Event."""

    reason: str
    message: str
    warning: bool = False


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
        ConditionType.READY: _ready(facts),
        ConditionType.PROGRESSING: _progressing(facts),
        ConditionType.DEGRADED: _degraded(facts, _condition(old, ConditionType.DEGRADED)),
        ConditionType.KV_TRANSFER_VERIFIED: _verified(facts, _condition(old, ConditionType.KV_TRANSFER_VERIFIED)),
    }
    conditions = [_dated(kind, outcome, facts.generation, old, now) for kind, outcome in outcomes.items()]
    if facts.deployment is None or facts.rollout is None:
        # With an invalid spec the children stay as they are, and so does the rest of the status.
        return {**old, **_dump(Status(observed_generation=facts.generation, conditions=conditions))}
    status = _status(facts, facts.deployment, facts.rollout.revision, conditions)
    return _dump(status.model_copy(update={"operator": old.get("operator")}))


def crd_too_old(missing: Sequence[str], old: Mapping[str, Any], generation: int, now: datetime) -> dict[str, Any]:
    """The status while the CRD lacks fields: only Degraded changes, and all of it is in the CRD of PDX 0.1.0."""
    text = (
        f"the CRD lacks {', '.join(missing[:3])}{' and more' if missing[3:] else ''}; apply the CRD of the operator's "
    )
    outcome = _Outcome(True, CRD_TOO_OLD, f"{text}version; until then the operator changes nothing")
    degraded = _dump(_dated(ConditionType.DEGRADED, outcome, generation, old, now))
    others = [each for each in old.get("conditions") or () if each["type"] != ConditionType.DEGRADED]
    return {**old, "conditions": [*others, degraded]}


def transitions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Transition]:
    """The changes between two statuses that are worth an Event: none while an object stays as it is."""

    def both(kind: ConditionType) -> tuple[_Condition, _Condition]:
        return _condition(old, kind), _condition(new, kind)

    return [
        *_became_wrong(*both(ConditionType.DEGRADED), "True"),
        *_rollout_events(*both(ConditionType.PROGRESSING)),
        *_ready_events(*both(ConditionType.READY)),
        *_transfer_events(*both(ConditionType.KV_TRANSFER_VERIFIED)),
    ]


def _became_wrong(was: _Condition, now: _Condition, status: str) -> Iterator[Transition]:
    """A condition of something wrong that is new, or has a new reason."""
    if now.get("status") == status and (was.get("status"), was.get("reason")) != (status, now.get("reason")):
        yield Transition(now["reason"], now["message"], warning=True)


def _rollout_events(was: _Condition, now: _Condition) -> Iterator[Transition]:
    if now.get("reason") == Phase.ROLLING and was.get("reason") != Phase.ROLLING:
        yield Transition("RolloutStarted", now["message"])
    if now.get("reason") == Phase.COMPLETE and was.get("reason") in (Phase.ROLLING, Phase.RETIRING):
        yield Transition("RolloutCompleted", now["message"])


def _ready_events(was: _Condition, now: _Condition) -> Iterator[Transition]:
    if now.get("status") == "True" and was.get("status") != "True":
        yield Transition("Ready", now["message"])
    if now.get("status") == "False" and was.get("status") == "True":
        yield Transition("NotReady", now["message"], warning=True)


def _transfer_events(was: _Condition, now: _Condition) -> Iterator[Transition]:
    yield from _became_wrong(was, now, "False")
    if now.get("status") == "True" and was.get("status") == "False":
        yield Transition("KVTransferMended", now["message"])


def url(deployment: PDDeployment, namespace: str) -> str:
    """The gateway's URL inside the cluster."""
    return f"http://{gateway_name(deployment.metadata.name)}.{namespace}.svc"


def _ready(facts: Facts) -> _Outcome:
    if facts.deployment is None:
        return _Outcome(False, INVALID, facts.invalid)
    missing = _missing_gateway(facts.gateway) or _missing_engines(facts.deployment, facts.pools)
    if missing is not None:
        return missing
    return _Outcome(True, SERVING, f"requests are served at {url(facts.deployment, facts.namespace)}")


def _missing_gateway(gateway: ObservedGateway | None) -> _Outcome | None:
    if gateway is not None and min(gateway.ready, gateway.replicas):
        return None
    if gateway is not None and gateway.replicas == 0:
        return _Outcome(False, "ScaledToZero", "the gateway has no replicas; set spec.gateway.replicas")
    return _Outcome(False, "GatewayNotReady", "no gateway pod is ready")


def _missing_engines(deployment: PDDeployment, pools: Sequence[ObservedPool]) -> _Outcome | None:
    desired = {role: pool.replicas for role, pool in deployment.spec.pools().items()}
    server = Role.DECODE if deployment.spec.mode is Mode.DISAGGREGATED else Role.AGGREGATED
    ready: dict[Role, set[str]] = {role: set() for role in Role}
    for pool in pools:
        if min(pool.ready, pool.replicas):
            ready[pool.role].add(pool.revision)
    servers = ready[Role.DECODE] | ready[Role.AGGREGATED]
    if not servers:
        if desired[server] == 0:
            field = field_of(deployment.spec, server)
            return _Outcome(False, "ScaledToZero", f"there are no {server} engines; set spec.{field}.replicas")
        return _Outcome(False, f"{server.capitalize()}NotReady", f"no {server} engine is ready")
    if not desired.get(Role.PREFILL) or ready[Role.AGGREGATED] or ready[Role.PREFILL] & ready[Role.DECODE]:
        return None
    if not ready[Role.PREFILL]:
        return _Outcome(False, "PrefillNotReady", "no prefill engine is ready; decode engines serve whole requests")
    text = "the ready prefill and decode engines have different revisions; decode engines serve whole requests"
    return _Outcome(False, "NoPair", text)


def _progressing(facts: Facts) -> _Outcome:
    if facts.deployment is None or facts.rollout is None:
        return _Outcome(False, INVALID, "nothing is changed until the spec is valid")
    gateway = facts.gateway
    if not facts.rollout.done:
        return _Outcome(True, facts.rollout.phase, facts.rollout.message)
    if gateway is None or not gateway.settled or gateway.ready < gateway.replicas:
        count = f"{gateway.ready} of {gateway.replicas}" if gateway else "none"
        return _Outcome(True, "GatewayStarting", f"{facts.rollout.message}; {count} gateway pods are ready")
    return _Outcome(False, facts.rollout.phase, facts.rollout.message)


def _degraded(facts: Facts, old: _Condition) -> _Outcome:
    if facts.deployment is None:
        return _Outcome(True, INVALID, facts.invalid)
    failing = next((problem for problem in facts.problems if problem.failing), None)
    if failing is not None:
        return _Outcome(True, failing.reason, failing.message)
    if not facts.inspected and old.get("observedGeneration") == facts.generation:
        return _Outcome(old["status"] == "True", old["reason"], old["message"])
    if facts.problems:
        return _Outcome(False, facts.problems[0].reason, facts.problems[0].message)
    return _Outcome(False, NOTHING_FOUND, "nothing is wrong")


def _verified(facts: Facts, old: _Condition) -> _Outcome:
    if facts.deployment is None:
        return _unchanged(old) if old else _Outcome(None, INVALID, "the spec is invalid")
    spec, finding = facts.deployment.spec, facts.transfer.finding
    if spec.mode is Mode.AGGREGATED:
        return _Outcome(None, "Aggregated", "aggregated engines do both prefill and decode: no KV is transferred")
    if not spec.routing.canary_seconds:
        return _Outcome(None, "SwitchedOff", "spec.routing.canarySeconds is 0: the gateway sends no transfer probes")
    if finding is not None:
        return _found(finding, spec.routing.canary_seconds)
    if facts.transfer.unreachable:
        return _Outcome(None, "GatewayUnreachable", "the operator cannot reach the admin port of any gateway")
    if old.get("reason") not in (None, INVALID, "Aggregated", "SwitchedOff"):
        # The operator has just started: the last result is still valid.
        return _unchanged(old)
    return _Outcome(None, "NotTriedYet", "no gateway has reported a transfer probe yet")


def _unchanged(old: _Condition) -> _Outcome:
    return _Outcome({"True": True, "False": False}.get(old["status"]), old["reason"], old["message"])


def _found(finding: Finding, seconds: int) -> _Outcome:
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
    return _Outcome(None, "NotTriedYet", finding.why)


def _status(facts: Facts, deployment: PDDeployment, revision: str, conditions: list[Condition]) -> Status:
    spec = deployment.spec
    split = spec.mode is Mode.DISAGGREGATED
    counts = {
        role: PoolStatus(
            desired=pool.replicas,
            ready=sum(min(state.ready, state.replicas) for state in facts.pools if state.role is role),
            revision=revision,
        )
        for role, pool in spec.pools().items()
    }
    gateway = facts.gateway
    return Status(
        observed_generation=facts.generation,
        url=url(deployment, facts.namespace),
        mode=spec.mode,
        connector=spec.connector.name if split else None,
        order=spec.order if split else None,
        image=spec.engine.image,
        revision=revision,
        prefill=counts.get(Role.PREFILL),
        decode=counts.get(Role.DECODE),
        aggregated=counts.get(Role.AGGREGATED),
        gateway=GatewayStatus(
            desired=gateway.replicas if gateway else spec.gateway.replicas,
            ready=min(gateway.ready, gateway.replicas) if gateway else 0,
        ),
        conditions=conditions,
    )


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
