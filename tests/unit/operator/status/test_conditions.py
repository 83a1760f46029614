"""The status of an object, built from facts."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.spec.parse import parse
from pdx_api.spec.types import PDDeployment
from pdx_api.verification import Broken, Cause, Finding, Verdict
from pdx_operator.kube.resources import ChildKey
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.observed.workloads import ObservedGateway, ObservedPool
from pdx_operator.plan.rollout import Budget, plan_rollout
from pdx_operator.status.conditions import Transition, build, crd_too_old, transitions
from pdx_operator.status.diagnosis import Diagnosis
from pdx_operator.status.facts import Facts
from pdx_operator.status.problems import rejected_child

P, D, A = Role.PREFILL, Role.DECODE, Role.AGGREGATED
NOW = datetime.fromisoformat("2026-05-04T12:00:00Z")
LATER = NOW + timedelta(minutes=3)
GATEWAY = ObservedGateway(1, 1, True)
BROKEN = Diagnosis("Crashing", "the decode engine: it ends with exit code 1; read its log")


def deployment(prefill: int = 1, decode: int = 1, **spec: Any) -> PDDeployment:
    pools = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    body = {"model": {"name": "m"}, **pools, **spec}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": "x"}, "spec": body})


def pool(role: Role, revision: str, replicas: int, ready: int) -> ObservedPool:
    return ObservedPool(f"x-{role}-{revision}", role, revision, replicas, ready, True, replicas, proven=True)


PAIR = (pool(P, "a", 1, 1), pool(D, "a", 1, 1))


def facts(
    *pools: ObservedPool, of: PDDeployment | None = None, gateway: ObservedGateway | None = GATEWAY, **more: Any
) -> Facts:
    of = of or deployment()
    desired = {role: pool.replicas for role, pool in of.spec.pools().items()}
    step = plan_rollout("a", desired, pools, Budget())
    found = Facts(generation=2, namespace="ns", deployment=of, rollout=step, pools=pools, gateway=gateway)
    return replace(found, **more)


def outcomes(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def test_the_status_of_a_serving_object() -> None:
    status = build(facts(*PAIR), {}, NOW)
    conditions = status.pop("conditions")
    assert status == {
        "observedGeneration": 2,
        "url": "http://x-gateway.ns.svc",
        "mode": "Disaggregated",
        "connector": "NIXL",
        "order": "PrefillFirst",
        "image": deployment().spec.engine.image,
        "revision": "a",
        "prefill": {"desired": 1, "ready": 1, "revision": "a", "summary": "1/1"},
        "decode": {"desired": 1, "ready": 1, "revision": "a", "summary": "1/1"},
        "gateway": {"desired": 1, "ready": 1},
    }
    assert [(c["type"], c["status"], c["reason"], c["message"]) for c in conditions] == [
        ("Ready", "True", "Serving", "requests are served at http://x-gateway.ns.svc"),
        ("Progressing", "False", "Complete", "all engines run revision a"),
        ("Degraded", "False", "NothingFound", "nothing is wrong"),
        ("KVTransferVerified", "Unknown", "NotTriedYet", "no gateway has reported a transfer probe yet"),
    ]
    assert {(c["observedGeneration"], c["lastTransitionTime"]) for c in conditions} == {(2, "2026-05-04T12:00:00Z")}


def test_one_pool_has_neither_connector_nor_order() -> None:
    status = build(facts(pool(A, "a", 2, 1), of=deployment(mode="Aggregated")), {}, NOW)
    assert status["aggregated"] == {"desired": 2, "ready": 1, "revision": "a", "summary": "1/2"}
    assert status.keys() & {"connector", "order", "prefill", "decode"} == set()
    assert outcomes(status)["Ready"] == ("True", "Serving")


def test_a_settled_object_has_the_same_status_for_ever() -> None:
    status = build(facts(*PAIR), {}, NOW)
    assert build(facts(*PAIR), status, LATER) == status


def test_a_transition_time_moves_only_with_its_status() -> None:
    before = build(facts(*PAIR), {}, NOW)
    after = build(facts(pool(P, "a", 1, 1), pool(D, "a", 1, 0), generation=3), before, LATER)
    times = {c["type"]: (c["lastTransitionTime"], c["observedGeneration"]) for c in after["conditions"]}
    assert times == {
        "Ready": ("2026-05-04T12:03:00Z", 3),
        "Progressing": ("2026-05-04T12:03:00Z", 3),
        "Degraded": ("2026-05-04T12:00:00Z", 3),
        "KVTransferVerified": ("2026-05-04T12:00:00Z", 3),
    }


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(facts(*PAIR, gateway=None), "GatewayNotReady", id="no gateway yet"),
        pytest.param(facts(*PAIR, gateway=ObservedGateway(1, 0, True)), "GatewayNotReady", id="gateway not ready"),
        pytest.param(facts(*PAIR, gateway=ObservedGateway(0, 1, False)), "ScaledToZero", id="no gateway desired"),
        pytest.param(facts(pool(P, "a", 1, 1)), "DecodeNotReady", id="prefill alone"),
        pytest.param(facts(pool(D, "a", 1, 1)), "PrefillNotReady", id="decode alone"),
        pytest.param(facts(pool(P, "a", 1, 1), pool(D, "b", 1, 1)), "NoPair", id="two revisions"),
        pytest.param(facts(of=deployment(1, 0)), "ScaledToZero", id="no decode desired"),
        pytest.param(facts(of=deployment(mode="Aggregated")), "AggregatedNotReady", id="one pool"),
        pytest.param(facts(pool(P, "a", 1, 1), pool(D, "a", 0, 1)), "DecodeNotReady", id="decode leaving"),
    ],
)
def test_missing_parts_are_named(found: Facts, reason: str) -> None:
    assert outcomes(build(found, {}, NOW))["Ready"] == ("False", reason)


def test_the_message_names_the_users_field() -> None:
    status = build(facts(of=deployment(0, 0, mode="Aggregated")), {}, NOW)
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert ready["message"] == "there are no aggregated engines; set spec.decode.replicas"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(facts(pool(D, "a", 1, 1), of=deployment(0, 1)), id="decode alone as desired"),
        pytest.param(facts(pool(P, "b", 1, 1), pool(D, "b", 1, 1), pool(D, "a", 1, 0)), id="the old pair"),
        pytest.param(facts(pool(A, "b", 1, 1)), id="still the one pool"),
    ],
)
def test_a_serving_object_is_ready(found: Facts) -> None:
    assert outcomes(build(found, {}, NOW))["Ready"] == ("True", "Serving")


def test_a_rollout_is_progressing_and_not_degraded() -> None:
    found = facts(pool(P, "b", 1, 1), pool(D, "b", 1, 1), pool(P, "a", 1, 0), pool(D, "a", 1, 0))
    status = build(found, {}, NOW)
    assert outcomes(status) == {
        "Ready": ("True", "Serving"),
        "Progressing": ("True", "RollingOut"),
        "Degraded": ("False", "NothingFound"),
        "KVTransferVerified": ("Unknown", "NotTriedYet"),
    }
    assert status["conditions"][1]["message"].startswith("rolling from b to a: 0 of 1 prefill and 0 of 1 decode")


def test_an_incomplete_gateway_is_progressing() -> None:
    status = build(facts(*PAIR, gateway=ObservedGateway(2, 1, True)), {}, NOW)
    assert outcomes(status)["Progressing"] == ("True", "GatewayStarting")


def test_failing_pods_degrade_and_loading_pods_do_not() -> None:
    loading = Diagnosis("Loading", "the prefill engine: it is starting", failing=False)
    status = build(facts(problems=[loading, BROKEN]), {}, NOW)
    assert status["conditions"][2] | {"lastTransitionTime": ""} == {
        "type": "Degraded",
        "status": "True",
        "reason": "Crashing",
        "message": BROKEN.message,
        "observedGeneration": 2,
        "lastTransitionTime": "",
    }
    assert outcomes(build(facts(problems=[loading]), {}, NOW))["Degraded"] == ("False", "Loading")


def test_a_diagnosis_stays_until_the_next_inspection() -> None:
    before = build(facts(problems=[BROKEN]), {}, NOW)
    assert build(facts(inspected=False), before, LATER) == before
    assert outcomes(build(facts(inspected=False, generation=3), before, LATER))["Degraded"] == ("False", "NothingFound")
    assert outcomes(build(facts(), before, LATER))["Degraded"] == ("False", "NothingFound")


def test_an_invalid_spec_keeps_the_rest_of_the_status() -> None:
    before = build(facts(*PAIR), {}, NOW)
    invalid = Facts(generation=3, namespace="ns", deployment=None, invalid="spec.model is missing.")
    after = build(invalid, before, LATER)
    assert after["url"] == before["url"]
    assert (after["observedGeneration"], after["decode"]) == (3, before["decode"])
    assert outcomes(after) == {
        "Ready": ("False", "InvalidSpec"),
        "Progressing": ("False", "InvalidSpec"),
        "Degraded": ("True", "InvalidSpec"),
        "KVTransferVerified": ("Unknown", "NotTriedYet"),
    }
    assert build(invalid, after, LATER) == after
    assert outcomes(build(invalid, {}, NOW))["KVTransferVerified"] == ("Unknown", "InvalidSpec")


ALL_WELL = TransferReport(Finding(Verdict.VERIFIED, pairs=4, possible=4))
COVERED = TransferReport(Finding(Verdict.VERIFIED, pairs=8, possible=64))
BLOCKED = Broken("p-0", "d-1", "D has computed a whole prompt by itself", Cause.PORTS)
NOTHING_MOVES = TransferReport(Finding(Verdict.BROKEN, possible=4, broken=(BLOCKED,), broken_pairs=2))
NOT_VERIFIED = TransferReport(
    Finding(Verdict.UNKNOWN, "x", broken=(Broken("p", "d", "D does not say", Cause.NOT_REPORTED),))
)


@pytest.mark.parametrize(
    ("transfer", "expected", "text"),
    [
        (TransferReport(), ("Unknown", "NotTriedYet"), "no gateway has reported a transfer probe yet"),
        (TransferReport(unreachable=True), ("Unknown", "GatewayUnreachable"), "the admin port of any gateway"),
        (TransferReport(Finding(Verdict.UNKNOWN, "no pair")), ("Unknown", "NotTriedYet"), "no pair"),
        (NOT_VERIFIED, ("Unknown", "NotReported"), "--enable-prompt-tokens-details"),
        (ALL_WELL, ("True", "Verified"), "in 4 pairs of prefill and decode engines (all pairs); probed every 40 s"),
        (COVERED, ("True", "Verified"), "in 8 pairs of prefill and decode engines (which include every engine)"),
        (
            NOTHING_MOVES,
            ("False", "PortsBlocked"),
            "(2 of 4 pairs): p-0 to d-1: D has computed a",
        ),
    ],
)
def test_the_result_of_transfer_probes(transfer: TransferReport, expected: tuple[str, str], text: str) -> None:
    status = build(facts(*PAIR, transfer=transfer), {}, NOW)
    assert outcomes(status)["KVTransferVerified"] == expected
    assert text in status["conditions"][-1]["message"]
    assert build(facts(*PAIR, transfer=transfer), status, LATER) == status, "an equal report changes nothing"


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (deployment(mode="Aggregated"), "Aggregated"),
        (deployment(routing={"canarySeconds": 0}), "SwitchedOff"),
    ],
)
def test_without_transfer_probes_nothing_is_verified(of: PDDeployment, reason: str) -> None:
    before = build(facts(*PAIR, transfer=ALL_WELL), {}, NOW)
    after = build(facts(of=of), before, LATER)
    assert outcomes(after)["KVTransferVerified"] == ("Unknown", reason)
    back = build(facts(*PAIR), after, LATER)
    assert outcomes(back)["KVTransferVerified"] == ("Unknown", "NotTriedYet")


@pytest.mark.parametrize("transfer", [ALL_WELL, NOTHING_MOVES])
def test_a_restarted_operator_keeps_the_last_result(transfer: TransferReport) -> None:
    before = build(facts(*PAIR, transfer=transfer), {}, NOW)
    assert build(facts(*PAIR), before, LATER) == before


def test_a_broken_and_a_repaired_transfer_are_events() -> None:
    well, broken = (build(facts(*PAIR, transfer=transfer), {}, NOW) for transfer in (ALL_WELL, NOTHING_MOVES))
    assert [(t.reason, t.warning) for t in transitions(well, broken)] == [("PortsBlocked", True)]
    assert [(t.reason, t.warning) for t in transitions(broken, well)] == [("KVTransferMended", False)]
    assert transitions(build(facts(*PAIR), {}, NOW), well) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(facts(), facts(), [], id="nothing new"),
        pytest.param(
            facts(),
            facts(*PAIR),
            [Transition("Ready", "requests are served at http://x-gateway.ns.svc")],
            id="ready",
        ),
        pytest.param(
            facts(*PAIR),
            facts(pool(P, "a", 1, 1), pool(D, "a", 1, 0), problems=[BROKEN]),
            [
                Transition("Crashing", BROKEN.message, warning=True),
                Transition("NotReady", "no decode engine is ready", warning=True),
            ],
            id="broken",
        ),
        pytest.param(facts(problems=[BROKEN]), facts(problems=[BROKEN]), [], id="still broken"),
        pytest.param(
            facts(*PAIR, pool(P, "b", 1, 1)),
            facts(*PAIR),
            [Transition("RolloutCompleted", "all engines run revision a")],
            id="rolled out",
        ),
    ],
)
def test_changes_are_events(before: Facts, after: Facts, expected: list[Transition]) -> None:
    old = build(before, {}, NOW)
    assert transitions(old, build(after, old, LATER)) == expected


def test_the_start_of_a_rollout_is_an_event() -> None:
    old = build(facts(*PAIR), {}, NOW)
    rolling = facts(pool(P, "b", 1, 1), pool(D, "b", 1, 1))
    assert [t.reason for t in transitions(old, build(rolling, old, LATER))] == ["RolloutStarted"]


def test_a_rejected_child_has_a_cause() -> None:
    assert rejected_child(ChildKey("Service", "x-gateway"), "").reason == "NameTaken"
    refused = rejected_child(ChildKey("Deployment", "x-gateway"), "Deployment is\n invalid")
    assert (refused.reason, refused.message) == (
        "ChildRefused",
        "the API server refuses Deployment x-gateway: Deployment is invalid",
    )


def test_a_crd_that_is_too_old_changes_one_condition() -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "message": "m", "observedGeneration": 1}
    old = {"observedGeneration": 1, "url": "u", "conditions": [ready]}
    missing = (".status.operator", ".spec.a", ".spec.b", ".spec.c")
    status = crd_too_old(missing, old, 2, NOW)
    assert {**status, "conditions": []} == {**old, "conditions": []}
    kept, degraded = status["conditions"]
    assert kept == ready
    assert (degraded["type"], degraded["status"], degraded["reason"]) == ("Degraded", "True", "CRDTooOld")
    assert degraded["message"].startswith("the CRD lacks .status.operator, .spec.a, .spec.b and more; apply the CRD")
    assert crd_too_old(missing, status, 2, NOW) == status
    (transition,) = transitions(old, status)
    assert (transition.reason, transition.warning) == ("CRDTooOld", True)
