"""The status of an object, from what was found."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.spec.parse import parse
from pdx_api.spec.types import PDDeployment
from pdx_api.verification import Broken, Cause, Finding, Verdict
from pdx_operator.observed.workloads import GatewayState, Heard, PoolState
from pdx_operator.plan.rollout import Budget, plan
from pdx_operator.status.conditions import Facts, Transition, build, refused_child, transitions
from pdx_operator.status.diagnosis import Diagnosis

P, D, A = Role.PREFILL, Role.DECODE, Role.AGGREGATED
NOW = datetime.fromisoformat("2026-05-04T12:00:00Z")
LATER = NOW + timedelta(minutes=3)
GATEWAY = GatewayState(1, 1, True)
BROKEN = Diagnosis("Crashing", "the decode engine: it ends with exit code 1; look at its log")


def deployment(prefill: int = 1, decode: int = 1, **spec: Any) -> PDDeployment:
    pools = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    body = {"model": {"name": "m"}, **pools, **spec}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": "x"}, "spec": body})


def pool(role: Role, revision: str, replicas: int, ready: int) -> PoolState:
    return PoolState(f"x-{role}-{revision}", role, revision, replicas, ready, True, replicas, proven=True)


PAIR = (pool(P, "a", 1, 1), pool(D, "a", 1, 1))


def facts(
    *pools: PoolState, of: PDDeployment | None = None, gateway: GatewayState | None = GATEWAY, **more: Any
) -> Facts:
    of = of or deployment()
    desired = {role: pool.replicas for role, pool in of.spec.pools().items()}
    step = plan("a", desired, pools, Budget())
    found = Facts(generation=2, namespace="ns", deployment=of, plan=step, pools=pools, gateway=gateway)
    return replace(found, **more)


def verdicts(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def test_all_that_is_in_force_is_shown() -> None:
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
        ("KVTransferVerified", "Unknown", "NotTriedYet", "no gateway has told of a canary yet"),
    ]
    assert {(c["observedGeneration"], c["lastTransitionTime"]) for c in conditions} == {(2, "2026-05-04T12:00:00Z")}


def test_one_pool_has_neither_connector_nor_order() -> None:
    status = build(facts(pool(A, "a", 2, 1), of=deployment(mode="Aggregated")), {}, NOW)
    assert status["aggregated"] == {"desired": 2, "ready": 1, "revision": "a", "summary": "1/2"}
    assert status.keys() & {"connector", "order", "prefill", "decode"} == set()
    assert verdicts(status)["Ready"] == ("True", "Serving")


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
        pytest.param(facts(*PAIR, gateway=GatewayState(1, 0, True)), "GatewayNotReady", id="gateway not ready"),
        pytest.param(facts(*PAIR, gateway=GatewayState(0, 1, False)), "ScaledToZero", id="no gateway wanted"),
        pytest.param(facts(pool(P, "a", 1, 1)), "DecodeNotReady", id="prefill alone"),
        pytest.param(facts(pool(D, "a", 1, 1)), "PrefillNotReady", id="decode alone"),
        pytest.param(facts(pool(P, "a", 1, 1), pool(D, "b", 1, 1)), "NoPair", id="two revisions"),
        pytest.param(facts(of=deployment(1, 0)), "ScaledToZero", id="no decode wanted"),
        pytest.param(facts(of=deployment(mode="Aggregated")), "AggregatedNotReady", id="one pool"),
        pytest.param(facts(pool(P, "a", 1, 1), pool(D, "a", 0, 1)), "DecodeNotReady", id="decode leaving"),
    ],
)
def test_what_is_missing_is_named(found: Facts, reason: str) -> None:
    assert verdicts(build(found, {}, NOW))["Ready"] == ("False", reason)


def test_what_to_set_is_the_field_that_the_user_has_written() -> None:
    status = build(facts(of=deployment(0, 0, mode="Aggregated")), {}, NOW)
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert ready["message"] == "there are no aggregated engines; set spec.decode.replicas"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(facts(pool(D, "a", 1, 1), of=deployment(0, 1)), id="decode alone as wanted"),
        pytest.param(facts(pool(P, "b", 1, 1), pool(D, "b", 1, 1), pool(D, "a", 1, 0)), id="the old pair"),
        pytest.param(facts(pool(A, "b", 1, 1)), id="still the one pool"),
    ],
)
def test_what_serves_is_ready(found: Facts) -> None:
    assert verdicts(build(found, {}, NOW))["Ready"] == ("True", "Serving")


def test_a_rollout_is_progress_and_no_harm() -> None:
    found = facts(pool(P, "b", 1, 1), pool(D, "b", 1, 1), pool(P, "a", 1, 0), pool(D, "a", 1, 0))
    status = build(found, {}, NOW)
    assert verdicts(status) == {
        "Ready": ("True", "Serving"),
        "Progressing": ("True", "RollingOut"),
        "Degraded": ("False", "NothingFound"),
        "KVTransferVerified": ("Unknown", "NotTriedYet"),
    }
    assert status["conditions"][1]["message"].startswith("rolling from b to a: 0 of 1 prefill and 0 of 1 decode")


def test_a_gateway_that_is_not_complete_is_progress() -> None:
    status = build(facts(*PAIR, gateway=GatewayState(2, 1, True)), {}, NOW)
    assert verdicts(status)["Progressing"] == ("True", "GatewayStarting")


def test_what_fails_degrades_and_what_loads_does_not() -> None:
    loading = Diagnosis("Loading", "the prefill engine: it is starting", failing=False)
    status = build(facts(troubles=[loading, BROKEN]), {}, NOW)
    assert status["conditions"][2] | {"lastTransitionTime": ""} == {
        "type": "Degraded",
        "status": "True",
        "reason": "Crashing",
        "message": BROKEN.message,
        "observedGeneration": 2,
        "lastTransitionTime": "",
    }
    assert verdicts(build(facts(troubles=[loading]), {}, NOW))["Degraded"] == ("False", "Loading")


def test_a_finding_stays_until_the_pods_are_looked_at_again() -> None:
    before = build(facts(troubles=[BROKEN]), {}, NOW)
    assert build(facts(looked=False), before, LATER) == before
    assert verdicts(build(facts(looked=False, generation=3), before, LATER))["Degraded"] == ("False", "NothingFound")
    assert verdicts(build(facts(), before, LATER))["Degraded"] == ("False", "NothingFound")


def test_a_spec_that_cannot_be_used_leaves_the_rest_as_it_was() -> None:
    before = build(facts(*PAIR), {}, NOW)
    invalid = Facts(generation=3, namespace="ns", deployment=None, invalid="spec.model is missing.")
    after = build(invalid, before, LATER)
    assert after["url"] == before["url"]
    assert (after["observedGeneration"], after["decode"]) == (3, before["decode"])
    assert verdicts(after) == {
        "Ready": ("False", "InvalidSpec"),
        "Progressing": ("False", "InvalidSpec"),
        "Degraded": ("True", "InvalidSpec"),
        "KVTransferVerified": ("Unknown", "NotTriedYet"),
    }
    assert build(invalid, after, LATER) == after
    assert verdicts(build(invalid, {}, NOW))["KVTransferVerified"] == ("Unknown", "InvalidSpec")


ALL_WELL = Heard(Finding(Verdict.VERIFIED, pairs=4, possible=4))
COVERED = Heard(Finding(Verdict.VERIFIED, pairs=8, possible=64))
BLOCKED = Broken("p-0", "d-1", "D has computed a whole prompt by itself", Cause.PORTS)
NOTHING_MOVES = Heard(Finding(Verdict.BROKEN, possible=4, broken=(BLOCKED,), broken_pairs=2))
UNTOLD = Heard(Finding(Verdict.UNKNOWN, "x", broken=(Broken("p", "d", "D does not say", Cause.NOT_REPORTED),)))


@pytest.mark.parametrize(
    ("heard", "expected", "words"),
    [
        (Heard(), ("Unknown", "NotTriedYet"), "no gateway has told of a canary yet"),
        (Heard(silent=True), ("Unknown", "GatewayUnreachable"), "the admin port of no gateway"),
        (Heard(Finding(Verdict.UNKNOWN, "no pair")), ("Unknown", "NotTriedYet"), "no pair"),
        (UNTOLD, ("Unknown", "NotReported"), "--enable-prompt-tokens-details"),
        (ALL_WELL, ("True", "Verified"), "in 4 pairs of prefill and decode engines, all there are; tried every 40 s"),
        (COVERED, ("True", "Verified"), "in 8 pairs of prefill and decode engines, every engine is in one"),
        (
            NOTHING_MOVES,
            ("False", "PortsBlocked"),
            "(2 of 4 pairs): p-0 to d-1: D has computed a",
        ),
    ],
)
def test_what_canaries_show(heard: Heard, expected: tuple[str, str], words: str) -> None:
    status = build(facts(*PAIR, heard=heard), {}, NOW)
    assert verdicts(status)["KVTransferVerified"] == expected
    assert words in status["conditions"][-1]["message"]
    assert build(facts(*PAIR, heard=heard), status, LATER) == status, "the same is no news"


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (deployment(mode="Aggregated"), "Aggregated"),
        (deployment(routing={"canarySeconds": 0}), "SwitchedOff"),
    ],
)
def test_where_no_canary_is_sent_nothing_is_known(of: PDDeployment, reason: str) -> None:
    before = build(facts(*PAIR, heard=ALL_WELL), {}, NOW)
    after = build(facts(of=of), before, LATER)
    assert verdicts(after)["KVTransferVerified"] == ("Unknown", reason)
    back = build(facts(*PAIR), after, LATER)
    assert verdicts(back)["KVTransferVerified"] == ("Unknown", "NotTriedYet")


@pytest.mark.parametrize("heard", [ALL_WELL, NOTHING_MOVES])
def test_an_operator_that_starts_believes_the_last_one(heard: Heard) -> None:
    before = build(facts(*PAIR, heard=heard), {}, NOW)
    assert build(facts(*PAIR), before, LATER) == before


def test_a_break_of_the_transfer_and_its_mend_are_events() -> None:
    well, broken = (build(facts(*PAIR, heard=heard), {}, NOW) for heard in (ALL_WELL, NOTHING_MOVES))
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
            facts(pool(P, "a", 1, 1), pool(D, "a", 1, 0), troubles=[BROKEN]),
            [
                Transition("Crashing", BROKEN.message, warning=True),
                Transition("NotReady", "no decode engine is ready", warning=True),
            ],
            id="broken",
        ),
        pytest.param(facts(troubles=[BROKEN]), facts(troubles=[BROKEN]), [], id="still broken"),
        pytest.param(
            facts(*PAIR, pool(P, "b", 1, 1)),
            facts(*PAIR),
            [Transition("RolloutCompleted", "all engines run revision a")],
            id="rolled out",
        ),
    ],
)
def test_events_tell_changes(before: Facts, after: Facts, expected: list[Transition]) -> None:
    old = build(before, {}, NOW)
    assert transitions(old, build(after, old, LATER)) == expected


def test_a_rollout_is_told_when_it_starts() -> None:
    old = build(facts(*PAIR), {}, NOW)
    rolling = facts(pool(P, "b", 1, 1), pool(D, "b", 1, 1))
    assert [t.reason for t in transitions(old, build(rolling, old, LATER))] == ["RolloutStarted"]


def test_a_child_that_cannot_be_written_says_why() -> None:
    assert refused_child("Service", "x-gateway", "").reason == "NameTaken"
    refused = refused_child("Deployment", "x-gateway", "Deployment is\n invalid")
    assert (refused.reason, refused.message) == (
        "ChildRefused",
        "the API server refuses Deployment x-gateway: Deployment is invalid",
    )
