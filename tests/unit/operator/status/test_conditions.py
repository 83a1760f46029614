"""The status of an object, built from facts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.verification import Broken, Cause, Finding, Verdict
from pdx_operator.kube.resources import ChildKey, Event
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.observed.workloads import ObservedGateway, PodInspection
from pdx_operator.plan.proof import Unproven
from pdx_operator.plan.reconcile_plan import Plan
from pdx_operator.plan.rollout import Budget, plan_rollout
from pdx_operator.status.conditions import build, crd_too_old, transitions
from pdx_operator.status.diagnosis import Diagnosis
from pdx_operator.status.facts import Facts
from pdx_operator.status.problems import problems_of, rejected_child
from tests.unit.operator.status.built_facts import GATEWAY, LATER, NOW, PAIR, A, D, P, deployment, facts, outcomes, pool

BROKEN = Diagnosis("Crashing", "the decode engine: it ends with exit code 1; read its log")


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
        "roles": [role_status("prefill", 1, 1, 1, 1), role_status("decode", 1, 1, 1, 1)],
        "gateway": {"desiredReplicas": 1, "readyReplicas": 1, "ready": "1/1"},
    }
    assert [(c["type"], c["status"], c["reason"], c["message"]) for c in conditions] == [
        ("Available", "True", "Serving", "requests are served at http://x-gateway.ns.svc"),
        ("Ready", "True", "AsSpecified", "all engines and gateway pods are ready"),
        ("Progressing", "False", "Complete", "all engines run revision a"),
        ("Degraded", "False", "NothingFound", "nothing is wrong"),
        ("KVTransferVerified", "Unknown", "NotVerifiedYet", "no gateway has reported a transfer probe yet"),
    ]
    assert {(c["observedGeneration"], c["lastTransitionTime"]) for c in conditions} == {(2, "2026-05-04T12:00:00Z")}


def role_status(role: str, desired: int, replicas: int, ready: int, updated: int) -> dict[str, Any]:
    return {
        "role": role,
        "desiredReplicas": desired,
        "replicas": replicas,
        "readyReplicas": ready,
        "updatedReplicas": updated,
        "revision": "a",
        "ready": f"{ready}/{desired}",
    }


def test_the_engines_of_all_revisions_are_counted() -> None:
    status = build(facts(*PAIR, pool(D, "b", 2, 1), of=deployment(1, 3)), {}, NOW)
    assert status["roles"] == [role_status("prefill", 1, 1, 1, 1), role_status("decode", 3, 3, 2, 1)]


def test_one_pool_has_neither_connector_nor_order() -> None:
    status = build(facts(pool(A, "a", 2, 1), of=deployment(mode="Aggregated")), {}, NOW)
    assert status["roles"] == [role_status("aggregated", 2, 2, 1, 2)]
    assert status.keys() & {"connector", "order"} == set()
    assert outcomes(status)["Available"] == ("True", "Serving")
    assert outcomes(status)["Ready"] == ("False", "Starting")


def test_the_reason_names_what_is_not_as_it_should_be() -> None:
    broken = TransferReport(Finding(Verdict.BROKEN, possible=1, broken=(Broken("p", "d", "x", Cause.PORTS),)))
    found = [
        build(facts(*PAIR), {}, NOW),
        build(facts(*PAIR, transfer=broken), {}, NOW),
        build(facts(*PAIR, gateway=replace(GATEWAY, ready=0)), {}, NOW),
        build(facts(*PAIR, gateway=replace(GATEWAY, ready=0), problems=[BROKEN]), {}, NOW),
    ]
    assert [status.get("reason") for status in found] == [None, "PortsBlocked", "GatewayNotReady", "Crashing"]


def test_a_settled_object_has_the_same_status_for_ever() -> None:
    status = build(facts(*PAIR), {}, NOW)
    assert build(facts(*PAIR), status, LATER) == status


def test_a_transition_time_moves_only_with_its_status() -> None:
    before = build(facts(*PAIR), {}, NOW)
    after = build(facts(pool(P, "a", 1, 1), pool(D, "a", 1, 0), generation=3), before, LATER)
    times = {c["type"]: (c["lastTransitionTime"], c["observedGeneration"]) for c in after["conditions"]}
    assert times == {
        "Available": ("2026-05-04T12:03:00Z", 3),
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
    found_outcomes = outcomes(build(found, {}, NOW))
    assert found_outcomes["Ready"] == ("False", reason)
    served = reason in ("PrefillNotReady", "NoPair")
    assert found_outcomes["Available"] == (("True", "Serving") if served else ("False", reason))


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
def test_a_serving_object_is_available(found: Facts) -> None:
    assert outcomes(build(found, {}, NOW))["Available"] == ("True", "Serving")


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        pytest.param(facts(*PAIR), ("True", "AsSpecified"), id="all"),
        pytest.param(
            facts(pool(P, "a", 0, 0), pool(D, "a", 1, 1), of=deployment(0, 1)),
            ("True", "AsSpecified"),
            id="decode alone",
        ),
        pytest.param(
            facts(pool(P, "a", 1, 1), pool(D, "a", 2, 1), of=deployment(1, 2)), ("False", "Starting"), id="one of two"
        ),
        pytest.param(facts(*PAIR, pool(D, "b", 0, 0)), ("False", "Retiring"), id="an old engine"),
        pytest.param(
            facts(*PAIR, gateway=ObservedGateway(2, 1, True)), ("False", "GatewayStarting"), id="one gateway of two"
        ),
        pytest.param(
            facts(*PAIR, gateway=ObservedGateway(1, 1, False)), ("False", "GatewayStarting"), id="an old gateway"
        ),
    ],
)
def test_an_object_is_ready_once_all_is_as_specified(found: Facts, outcome: tuple[str, str]) -> None:
    status = build(found, {}, NOW)
    assert outcomes(status)["Ready"] == outcome
    assert outcomes(status)["Available"] == ("True", "Serving")


def test_ready_does_not_wait_for_a_pod_that_cannot_end() -> None:
    stuck = Diagnosis("PodCannotEnd", "the decode engine: the pod old-1 should have ended")
    status = outcomes(build(facts(*PAIR, pool(D, "b", 0, 0), problems=[stuck]), {}, NOW))
    assert (status["Ready"], status["Degraded"]) == (("True", "AsSpecified"), ("True", "PodCannotEnd"))


def test_a_rollout_is_progressing_and_not_degraded() -> None:
    found = facts(pool(P, "b", 1, 1), pool(D, "b", 1, 1), pool(P, "a", 1, 0), pool(D, "a", 1, 0))
    status = build(found, {}, NOW)
    assert outcomes(status) == {
        "Available": ("True", "Serving"),
        "Ready": ("False", "RollingOut"),
        "Progressing": ("True", "RollingOut"),
        "Degraded": ("False", "NothingFound"),
        "KVTransferVerified": ("Unknown", "NotVerifiedYet"),
    }
    assert status["conditions"][2]["message"].startswith("rolling from b to a: 0 of 1 prefill and 0 of 1 decode")


def test_a_stopped_rollout_is_degraded_and_an_event() -> None:
    new = pool(P, "a", 1, 1), pool(D, "a", 1, 1)
    old = pool(P, "b", 1, 1), pool(D, "b", 1, 1)
    rolling = facts(*new, *old)
    pair = Broken("x-prefill-a-1", "x-decode-a-1", "the decode engine has computed it", Cause.MODEL)
    step = plan_rollout("a", {P: 1, D: 1}, (*new, *old), Budget(), Unproven(pair))
    plan = replace(rolling.plan, rollout=step)
    stopped = replace(rolling, plan=plan, problems=problems_of(plan, PodInspection(done=True), NOW))
    status = build(stopped, {}, NOW)
    assert outcomes(status) == {
        "Available": ("True", "Serving"),
        "Ready": ("False", "RolloutStopped"),
        "Progressing": ("False", "RolloutStopped"),
        "Degraded": ("True", "RolloutStopped"),
        "KVTransferVerified": ("Unknown", "NotVerifiedYet"),
    }
    (event,) = transitions(build(rolling, {}, NOW), status)
    assert (event.reason, event.warning) == ("RolloutStopped", True)
    assert event.note.startswith("the rollout to a has stopped, and the old engines serve: KV does not move between")
    assert [each.reason for each in transitions(status, build(facts(*new), status, NOW))] == ["RolloutCompleted"]


def test_an_incomplete_gateway_is_progressing() -> None:
    status = build(facts(*PAIR, gateway=ObservedGateway(2, 1, True)), {}, NOW)
    assert outcomes(status)["Progressing"] == ("True", "GatewayStarting")


LOADING = Diagnosis("Loading", "the prefill engine: it is starting", failing=False, waits=True)
REVERTED = Diagnosis("ChildReverted", "replicas of Deployment m is changed back", failing=False)


def progress(status: Mapping[str, Any]) -> str:
    return str(next(c for c in status["conditions"] if c["type"] == "Progressing")["message"])


def test_failing_pods_degrade_and_loading_pods_do_not() -> None:
    status = build(facts(problems=[LOADING, BROKEN]), {}, NOW)
    assert status["conditions"][3] | {"lastTransitionTime": ""} == {
        "type": "Degraded",
        "status": "True",
        "reason": "Crashing",
        "message": BROKEN.message,
        "observedGeneration": 2,
        "lastTransitionTime": "",
    }
    loading = build(facts(problems=[LOADING]), {}, NOW)
    assert outcomes(loading)["Degraded"] == ("False", "NothingFound")
    assert progress(loading) == "0 of 1 prefill and 0 of 1 decode engines of revision a are ready; " + LOADING.message
    assert build(facts(inspected=False), loading, LATER) == loading, "until the next inspection"
    assert progress(build(facts(), loading, LATER)).endswith("are ready")


def test_a_reverted_change_leaves_open_whether_the_object_is_degraded() -> None:
    status = build(facts(*PAIR, problems=[REVERTED]), {}, NOW)
    assert outcomes(status)["Degraded"] == ("Unknown", "ChildReverted")
    assert build(facts(*PAIR, inspected=False), status, LATER) == status
    assert outcomes(build(facts(*PAIR, problems=[LOADING, REVERTED]), {}, NOW))["Degraded"][1] == "ChildReverted"


def test_a_diagnosis_stays_until_the_next_inspection() -> None:
    before = build(facts(problems=[BROKEN]), {}, NOW)
    assert build(facts(inspected=False), before, LATER) == before
    assert outcomes(build(facts(inspected=False, generation=3), before, LATER))["Degraded"] == ("False", "NothingFound")
    assert outcomes(build(facts(), before, LATER))["Degraded"] == ("False", "NothingFound")


def test_an_invalid_spec_keeps_the_rest_of_the_status() -> None:
    before = build(facts(*PAIR), {}, NOW)
    invalid = Facts(generation=3, namespace="ns", plan=Plan(None, invalid="spec.model is missing."))
    after = build(invalid, before, LATER)
    assert after["url"] == before["url"]
    assert (after["observedGeneration"], after["roles"]) == (3, before["roles"])
    assert outcomes(after) == {
        "Available": ("Unknown", "InvalidSpec"),
        "Ready": ("False", "InvalidSpec"),
        "Progressing": ("False", "InvalidSpec"),
        "Degraded": ("True", "InvalidSpec"),
        "KVTransferVerified": ("Unknown", "NotVerifiedYet"),
    }
    assert build(invalid, after, LATER) == after
    assert outcomes(build(invalid, {}, NOW))["KVTransferVerified"] == ("Unknown", "InvalidSpec")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(facts(), facts(), [], id="nothing new"),
        pytest.param(
            facts(),
            facts(*PAIR),
            [Event("Available", "requests are served at http://x-gateway.ns.svc")],
            id="ready",
        ),
        pytest.param(
            facts(*PAIR),
            facts(pool(P, "a", 1, 1), pool(D, "a", 1, 0), problems=[BROKEN]),
            [
                Event("Crashing", BROKEN.message, warning=True),
                Event("Unavailable", "no decode engine is ready", warning=True),
            ],
            id="broken",
        ),
        pytest.param(facts(problems=[BROKEN]), facts(problems=[BROKEN]), [], id="still broken"),
        pytest.param(
            facts(*PAIR, pool(P, "b", 1, 1)),
            facts(*PAIR),
            [Event("RolloutCompleted", "all engines run revision a")],
            id="rolled out",
        ),
    ],
)
def test_changes_are_events(before: Facts, after: Facts, expected: list[Event]) -> None:
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
        "ChildRejected",
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
