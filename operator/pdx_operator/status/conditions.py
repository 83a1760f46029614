"""The status of an object, from what was found: conditions, what is in force, counts; and which changes are Events.

A settled object's status is the same whenever it is built, so that nothing is written: that KV is verified again and
again shows nowhere in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from pdx_api.names import ConditionType, Mode, Role, gateway_name
from pdx_api.spec.status import Condition, GatewayStatus, PoolStatus, Status
from pdx_api.spec.types import PDDeployment
from pdx_api.verification import Finding, Verdict
from pdx_operator.observed.workloads import GatewayState, Heard, PoolState
from pdx_operator.plan.rollout import Phase, Plan
from pdx_operator.render.engines import written_as
from pdx_operator.status.diagnosis import Diagnosis

INVALID: Final = "InvalidSpec"
SERVING: Final = "Serving"
NOTHING_FOUND: Final = "NothingFound"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an object in one turn."""

    generation: int
    namespace: str
    deployment: PDDeployment | None
    """None when the spec cannot be used."""
    invalid: str = ""
    """Then a sentence that says why."""
    plan: Plan | None = None
    pools: Sequence[PoolState] = ()
    gateway: GatewayState | None = None
    troubles: Sequence[Diagnosis] = ()
    """What stands in the way, the most important first."""
    heard: Heard = field(default_factory=Heard)
    """What gateways have said of canaries."""
    looked: bool = True
    """Whether the pods were looked at; what an earlier look has found stays until then."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of the conditions that people want to hear of."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class _Verdict:
    holds: bool | None
    """None: it is not known."""
    reason: str
    message: str


def build(facts: Facts, old: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The status as the API server holds it; `old` is the present one, for what has not changed since."""
    verdicts = {
        ConditionType.READY: _ready(facts),
        ConditionType.PROGRESSING: _progressing(facts),
        ConditionType.DEGRADED: _degraded(facts, _condition(old, ConditionType.DEGRADED)),
        ConditionType.KV_TRANSFER_VERIFIED: _verified(facts, _condition(old, ConditionType.KV_TRANSFER_VERIFIED)),
    }
    conditions = [_stamped(kind, verdict, facts.generation, old, now) for kind, verdict in verdicts.items()]
    if facts.deployment is None or facts.plan is None:
        # What runs is left alone, and so is what was said of it.
        return {**old, **_dump(Status(observed_generation=facts.generation, conditions=conditions))}
    return _dump(_in_force(facts, facts.deployment, facts.plan.revision, conditions))


def transitions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Transition]:
    """The changes between two statuses that are worth an Event: few, and none while an object stays as it is."""
    told = []
    was, now = _condition(old, ConditionType.DEGRADED), _condition(new, ConditionType.DEGRADED)
    if now.get("status") == "True" and (was.get("status"), was.get("reason")) != ("True", now.get("reason")):
        told.append(Transition(now["reason"], now["message"], warning=True))
    was, now = _condition(old, ConditionType.PROGRESSING), _condition(new, ConditionType.PROGRESSING)
    if now.get("reason") == Phase.ROLLING and was.get("reason") != Phase.ROLLING:
        told.append(Transition("RolloutStarted", now["message"]))
    if now.get("reason") == Phase.COMPLETE and was.get("reason") in (Phase.ROLLING, Phase.RETIRING):
        told.append(Transition("RolloutCompleted", now["message"]))
    was, now = _condition(old, ConditionType.READY), _condition(new, ConditionType.READY)
    if now.get("status") == "True" and was.get("status") != "True":
        told.append(Transition("Ready", now["message"]))
    if now.get("status") == "False" and was.get("status") == "True":
        told.append(Transition("NotReady", now["message"], warning=True))
    was, now = (_condition(each, ConditionType.KV_TRANSFER_VERIFIED) for each in (old, new))
    if now.get("status") == "False" and (was.get("status"), was.get("reason")) != ("False", now.get("reason")):
        told.append(Transition(now["reason"], now["message"], warning=True))
    if now.get("status") == "True" and was.get("status") == "False":
        told.append(Transition("KVTransferMended", now["message"]))
    return told


def refused_child(kind: str, name: str, words: str) -> Diagnosis:
    """A child that cannot be written; `words` are the API server's, empty when the name is somebody else's."""
    if not words:
        text = f"a {kind} {name} exists that belongs to somebody else; delete it, or give this object another name"
        return Diagnosis("NameTaken", text)
    return Diagnosis("ChildRefused", f"the API server refuses {kind} {name}: {' '.join(words.split())[:600]}")


def undone_child(kind: str, name: str, path: str) -> Diagnosis:
    """A child that does not stay as it is written; `path` is the field, empty when the whole child is deleted."""
    what = f"{path} of {kind} {name} is changed back" if path else f"{kind} {name} is deleted again"
    text = f"{what} by somebody (a default, a policy, another controller); ask for what it is given, or stop that"
    return Diagnosis("ChangedBack", text, failing=False)


def url(deployment: PDDeployment, namespace: str) -> str:
    """Where the gateway serves, inside the cluster."""
    return f"http://{gateway_name(deployment.metadata.name)}.{namespace}.svc"


def _ready(facts: Facts) -> _Verdict:
    if facts.deployment is None:
        return _Verdict(False, INVALID, facts.invalid)
    missing = _missing_gateway(facts.gateway) or _missing_engines(facts.deployment, facts.pools)
    if missing is not None:
        return missing
    return _Verdict(True, SERVING, f"requests are served at {url(facts.deployment, facts.namespace)}")


def _missing_gateway(gateway: GatewayState | None) -> _Verdict | None:
    if gateway is not None and min(gateway.ready, gateway.replicas):
        return None
    if gateway is not None and gateway.replicas == 0:
        return _Verdict(False, "ScaledToZero", "the gateway has no replicas; set spec.gateway.replicas")
    return _Verdict(False, "GatewayNotReady", "no gateway pod is ready")


def _missing_engines(deployment: PDDeployment, pools: Sequence[PoolState]) -> _Verdict | None:
    wanted = {role: pool.replicas for role, pool in deployment.spec.pools().items()}
    server = Role.DECODE if deployment.spec.mode is Mode.DISAGGREGATED else Role.AGGREGATED
    ready: dict[Role, set[str]] = {role: set() for role in Role}
    for pool in pools:
        if min(pool.ready, pool.replicas):
            ready[pool.role].add(pool.revision)
    servers = ready[Role.DECODE] | ready[Role.AGGREGATED]
    if not servers:
        if wanted[server] == 0:
            field = written_as(deployment.spec, server)
            return _Verdict(False, "ScaledToZero", f"there are no {server} engines; set spec.{field}.replicas")
        return _Verdict(False, f"{server.capitalize()}NotReady", f"no {server} engine is ready")
    if not wanted.get(Role.PREFILL) or ready[Role.AGGREGATED] or ready[Role.PREFILL] & ready[Role.DECODE]:
        return None
    if not ready[Role.PREFILL]:
        return _Verdict(False, "PrefillNotReady", "no prefill engine is ready; decode engines serve whole requests")
    text = "the prefill and decode engines that are ready are of different revisions; decode engines serve alone"
    return _Verdict(False, "NoPair", text)


def _progressing(facts: Facts) -> _Verdict:
    if facts.deployment is None or facts.plan is None:
        return _Verdict(False, INVALID, "nothing is changed until the spec can be used")
    gateway = facts.gateway
    if not facts.plan.done:
        return _Verdict(True, facts.plan.phase, facts.plan.message)
    if gateway is None or not gateway.settled or gateway.ready < gateway.replicas:
        count = f"{gateway.ready} of {gateway.replicas}" if gateway else "none"
        return _Verdict(True, "GatewayStarting", f"{facts.plan.message}; {count} gateway pods are ready")
    return _Verdict(False, facts.plan.phase, facts.plan.message)


def _degraded(facts: Facts, old: Mapping[str, Any]) -> _Verdict:
    if facts.deployment is None:
        return _Verdict(True, INVALID, facts.invalid)
    failing = next((trouble for trouble in facts.troubles if trouble.failing), None)
    if failing is not None:
        return _Verdict(True, failing.reason, failing.message)
    if not facts.looked and old.get("observedGeneration") == facts.generation:
        return _Verdict(old["status"] == "True", old["reason"], old["message"])
    if facts.troubles:
        return _Verdict(False, facts.troubles[0].reason, facts.troubles[0].message)
    return _Verdict(False, NOTHING_FOUND, "nothing is wrong")


def _verified(facts: Facts, old: Mapping[str, Any]) -> _Verdict:
    if facts.deployment is None:
        return _still(old) if old else _Verdict(None, INVALID, "the spec cannot be used")
    spec, finding = facts.deployment.spec, facts.heard.finding
    if spec.mode is Mode.AGGREGATED:
        return _Verdict(None, "Aggregated", "each engine does both, prefill and decode: no KV travels")
    if not spec.routing.canary_seconds:
        return _Verdict(None, "SwitchedOff", "spec.routing.canarySeconds is 0: the gateway sends no canaries")
    if finding is not None:
        return _found(finding, spec.routing.canary_seconds)
    if facts.heard.silent:
        return _Verdict(None, "GatewayUnreachable", "the admin port of no gateway tells the operator of canaries")
    if old.get("reason") not in (None, INVALID, "Aggregated", "SwitchedOff"):
        # The operator has just started: what it heard before still stands.
        return _still(old)
    return _Verdict(None, "NotTriedYet", "no gateway has told of a canary yet")


def _still(old: Mapping[str, Any]) -> _Verdict:
    return _Verdict({"True": True, "False": False}.get(old["status"]), old["reason"], old["message"])


def _found(finding: Finding, seconds: int) -> _Verdict:
    if finding.verdict is Verdict.VERIFIED:
        number = f"{finding.pairs} pairs" if finding.pairs != 1 else "1 pair"
        which = "all there are" if finding.pairs == finding.possible else "every engine is in one"
        text = f"KV was seen to travel in {number} of prefill and decode engines, {which}; tried every {seconds} s"
        return _Verdict(True, "Verified", text)
    broken = next(iter(finding.broken), None)
    if broken is not None and finding.verdict is Verdict.UNKNOWN:
        return _Verdict(None, broken.cause, broken.sentence)
    if broken is not None:
        more = f" ({finding.broken_pairs} of {finding.possible} pairs)" if finding.possible > 1 else ""
        return _Verdict(False, broken.cause, f"KV does not travel{more}: {broken.sentence}")
    return _Verdict(None, "NotTriedYet", finding.why)


def _in_force(facts: Facts, deployment: PDDeployment, revision: str, conditions: list[Condition]) -> Status:
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


def _stamped(
    kind: ConditionType, verdict: _Verdict, generation: int, old: Mapping[str, Any], now: datetime
) -> Condition:
    words: dict[bool | None, Literal["True", "False", "Unknown"]] = {True: "True", False: "False", None: "Unknown"}
    status = words[verdict.holds]
    before = _condition(old, kind)
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return Condition(
        type=kind,
        status=status,
        reason=verdict.reason,
        message=verdict.message,
        observed_generation=generation,
        last_transition_time=since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _condition(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _dump(status: Status) -> dict[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
