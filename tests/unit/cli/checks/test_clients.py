"""Checks of what clients receive: the impact comes first, then its cause."""

from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.spec.parse import parse
from pdx_api.verification import Broken, Cause, Verdict
from pdx_api.verification import Finding as Result
from pdx_api.vllm_metrics import PromptTokens
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, Severity, examine
from pdx_cli.inputs.times import Objectives
from pdx_cli.sources.experience import experience_of
from pdx_cli.sources.observation import EndedProcess, Gateway
from pdx_operator.observed.workloads import ObservedGateway
from tests.doctor_observations import BODY, LOCAL, endpoint, gateway

HISTORY: dict[str, Any] = {
    "seconds": 120.0,
    "outcomes": {"split": 400},
    "sheds": {},
    "notSplit": {},
    "retriesRefused": 0,
    "ttft": {"count": 400, "median": 0.3},
    "queue": {"count": 0, "median": None},
    "tpot": {"qwen-decode-a-1": 0.02},
    "normal": {"ttft": 0.3, "tpot": 0.02},
}
PAIR = (endpoint(Role.PREFILL), endpoint(Role.DECODE, inFlight=2, limit=2.0))
NO_PREFILL = "No prefill engine serves: every request is served whole, by decode engines alone"


def served(*endpoints: Any, objectives: dict[str, float] | None = None, queued: int = 0, **history: Any) -> Gateway:
    """A gateway with requests, whose history has these changes."""
    base = gateway(*(endpoints or PAIR))
    more = {
        "history": {**HISTORY, **history},
        "objectives": {"ttftSeconds": 0, "tpotSeconds": 0, "queueSeconds": 60.0, **(objectives or {})},
        "inFlight": {"queued": queued},
    }
    return replace(base, state={**(base.state or {}), **more})


def here(*gateways: Gateway, **more: Any) -> list[Finding]:
    return examine(replace(LOCAL, gateways=gateways, **more), CHECKS)


def impacts(findings: list[Finding]) -> list[str]:
    return [each.sentence for each in findings if each.severity is Severity.IMPACT]


def causes(findings: list[Finding]) -> list[str]:
    return [each.cause for each in findings if each.severity is Severity.WRONG]


def test_nobody_suffers() -> None:
    assert here(served()) == []


def test_requests_that_fail_come_first_with_their_causes() -> None:
    outcomes = {"split": 433, "unavailable": 1500, "shed": 99, "client_left": 50, "refused": 9}
    findings = here(served(outcomes=outcomes, sheds={"queue_full": 99}, retriesRefused=280, retries={"status": 30}))
    assert impacts(findings) == ["79 % of requests fail: 1,599 of the 2,032 of the last 2 minutes"]
    assert findings[0].severity is Severity.IMPACT
    assert findings[0].remedy == (
        "Of these, 1,500 got no answer from any engine and 99 were refused because of a limit."
    )
    assert causes(findings) == ["RequestsShed", "EnginesFail", "RetriesRefused"]


@pytest.mark.parametrize("outcomes", [{"split": 997, "broken": 2}, {"split": 400, "idle": 3}, {"refused": 90}])
def test_a_few_failures_and_those_of_clients_are_no_finding(outcomes: dict[str, int]) -> None:
    assert here(served(outcomes=outcomes)) == []


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({}, "normal is 300 ms"),
        ({"normal": {}}, "no objective is set; people accept about 10 s"),
        ({"objectives": {"ttftSeconds": 2.0}}, "the gateway's objective allows 2 s"),
    ],
)
def test_late_first_tokens(changes: dict[str, Any], clause: str) -> None:
    findings = here(served(ttft={"count": 40, "median": 25.0}, **changes))
    assert impacts(findings) == [
        "Answers begin late: half of the streams of the last 2 minutes waited for more than 25 s for their first "
        f"token; {clause}"
    ]


@pytest.mark.parametrize(("p90", "is_late"), [(0.9, False), (2.2, False), (2.3, True), (None, False)])
def test_a_tenth_of_the_streams_waits_for_long_while_the_newest_are_served_first(
    p90: float | None, is_late: bool
) -> None:
    found = impacts(here(served(ttft={"count": 40, "median": 0.3, "p90": p90})))
    assert len(found) == is_late
    assert not found or "a tenth of the streams of the last 2 minutes waited for more than 2.3 s" in found[0]


def test_the_command_line_comes_before_the_gateway() -> None:
    shown = served(ttft={"count": 40, "median": 3.0}, objectives={"ttftSeconds": 2.0})
    assert here(shown, objectives=Objectives(ttft=5.0, source="--slo")) == []
    assert "--slo allows 1 s" in impacts(here(shown, objectives=Objectives(ttft=1.0, source="--slo")))[0]


def test_the_object_comes_before_the_gateway() -> None:
    from tests.doctor_observations import DEPLOYMENT

    slo = DEPLOYMENT.spec.slo.model_copy(update={"tpot_milliseconds": 10})
    deployment = DEPLOYMENT.model_copy(update={"spec": DEPLOYMENT.spec.model_copy(update={"slo": slo})})
    (sentence,) = impacts(here(served(), deployment=deployment))
    assert sentence == "Answers are slow: qwen-decode-a-1 needs 20 ms for each token; spec.slo allows 10 ms"


def test_a_decode_that_is_two_hundred_times_too_slow() -> None:
    slow = {"qwen-decode-a-1": 0.2, "d2": 0.001}
    (finding,) = here(served(tpot=slow, normal={"tpot": 0.001}))
    assert finding.sentence == (
        "Answers are slow: qwen-decode-a-1 needs 200 ms for each token; normal is 1 ms (1 of 2 engines are slow)"
    )
    assert finding.remedy.startswith("Only some engines are slow")


def test_three_times_the_normal_of_a_fast_deployment_is_fine() -> None:
    assert here(served(tpot={"d": 0.015}, ttft={"median": 0.4}, normal={"ttft": 0.01, "tpot": 0.001})) == []


def test_a_full_queue_names_the_engines_that_are_full() -> None:
    findings = here(served(ttft={"median": 25.0}, queue={"count": 40, "median": 24.0}, queued=22))
    assert causes(findings) == ["QueueLong"]
    assert findings[1].sentence == (
        "22 requests wait in the gateway's queue; half of those that waited did so for more than 24 s. The 1 engine "
        "that answers clients is full: 2 of 2 requests"
    )


def test_a_full_queue_names_the_limit_that_the_spec_sets() -> None:
    limited = parse({**BODY, "spec": {**BODY["spec"], "routing": {"queue": {"maxInFlightPerDecode": 1}}}})
    waits: dict[str, Any] = {"ttft": {"median": 25.0}, "queue": {"count": 40, "median": 24.0}, "queued": 22}
    (_, queue) = here(served(**waits), deployment=limited)
    assert queue.remedy.startswith("spec.routing.queue.maxInFlightPerDecode allows 1 per decode engine: remove it")


def test_a_long_wait_in_the_queue_is_wrong_without_streams() -> None:
    queue = {"count": 40, "median": 31.0}
    findings = here(served(endpoint(Role.PREFILL), endpoint(Role.DECODE), ttft={"median": None}, queue=queue))
    assert causes(findings) == ["QueueLong"]
    assert "full" not in findings[0].sentence


def test_the_only_prefill_engine_is_down() -> None:
    prefill = replace(LOCAL.engines[0], problem="connection refused")
    gone = served(endpoint(Role.PREFILL, "Cold", "connection refused"), PAIR[1], outcomes={"whole": 90})
    findings = here(gone, engines=(prefill, LOCAL.engines[1]))
    assert impacts(findings) == [NO_PREFILL]
    assert causes(findings) == ["EngineUnhealthy"]
    stale = here(served(), engines=(prefill, LOCAL.engines[1]))
    assert impacts(stale) == [NO_PREFILL], "the gateway has not noticed it yet"


def test_no_comfort_where_nothing_can_be_split() -> None:
    found = here(replace(served(PAIR[1]), state={**(served(PAIR[1]).state or {}), "outcomes": {"whole": 50}}))
    assert impacts(found) == [NO_PREFILL]
    assert "NothingSplit" not in {each.cause for each in found}


def test_the_only_decode_engine_is_down() -> None:
    gone = served(PAIR[0], endpoint(Role.DECODE, "Cold", "cannot connect"))
    assert impacts(here(gone)) == ["Every request fails: no engine that can answer clients serves"]


def test_the_only_decode_engine_hangs() -> None:
    hung = endpoint(Role.DECODE, "Suspect", "2 requests run and have made no progress for 31 s")
    assert impacts(here(served(PAIR[0], hung))) == [
        "Requests hang or fail: every engine that can answer clients has failed"
    ]
    assert impacts(here(served(PAIR[0], hung, PAIR[1]))) == [], "another one serves"


@pytest.mark.parametrize("dead", [(), (EndedProcess("gateway"),)])
def test_the_gateway_is_down(dead: tuple[EndedProcess, ...]) -> None:
    silent = () if dead else (Gateway("gateway", None, "connection refused"),)
    findings = here(*silent, dead=dead)
    assert findings[0].sentence == "Clients get no answer: no gateway answers"
    assert causes(findings) == ["ProcessEnded" if dead else "GatewaySilent"]


def test_kv_that_does_not_move_is_said_with_its_share() -> None:
    findings = here(served(outcomes={"whole": 95, "split": 5}, notSplit={"suspended": 95}))
    assert impacts(findings) == ["KV does not move: 95 % of requests are served whole, by decode engines alone"]


def test_kv_that_does_not_move_while_no_request_has_ended() -> None:
    findings = here(served(outcomes={}, notSplit={"suspended": 7}))
    assert impacts(findings) == ["KV does not move: 100 % of requests are served whole, by decode engines alone"]


SHARES: dict[str, Any] = {"outcomes": {"whole": 95, "split": 5}, "notSplit": {"suspended": 95}}
BROKEN = Broken("qwen-prefill-a-1", "qwen-decode-a-1", "D computed the prompt again", Cause.PORTS)


@pytest.mark.parametrize(
    ("verification", "sentence"),
    [
        (
            Result(Verdict.UNKNOWN, why="no pair was probed"),
            "KV did not move for a while: 95 % of requests of the last 2 minutes were served whole, and no transfer "
            "probe has shown yet that it moves again",
        ),
        (
            Result(Verdict.BROKEN, broken=(BROKEN,)),
            "KV does not move: 95 % of requests are served whole, by decode engines alone",
        ),
    ],
)
def test_only_probes_show_that_kv_moves_again(verification: Result, sentence: str) -> None:
    found = served(**SHARES)
    state = {**(found.state or {}), "suspendedPairs": []}
    findings = here(replace(found, state=state, verification={"finding": verification.as_json()}))
    assert impacts(findings) == [sentence]


def test_kv_that_moves_again_is_no_impact() -> None:
    found = replace(served(**SHARES), verification={"finding": Result(Verdict.VERIFIED, pairs=1).as_json()})
    findings = here(replace(found, state={**(found.state or {}), "suspendedPairs": []}))
    assert impacts(findings) == causes(findings) == []
    (finding,) = [each for each in findings if each.cause == "NotSplitting"]
    assert finding.sentence.endswith("95 % of requests of the last 2 minutes were served whole. It moves again")
    assert impacts(here(replace(found, state={**(found.state or {}), "suspendedPairs": [["p", "d"]]})))


@pytest.mark.parametrize(("received", "first"), [(50_000, "KV has moved to qwen-decode-a-1 since"), (0, "Likely: one")])
def test_a_pair_that_moved_kv_was_not_started_for_another_connector(received: float, first: str) -> None:
    reason = "qwen-decode-a-1: answered 500 to the warm-up"
    broken = served(endpoint(Role.PREFILL, "Warming", reason, starts=1), PAIR[1])
    decode = replace(LOCAL.engines[1], tokens=PromptTokens(60_000, received, 10_000))
    findings = here(broken, engines=(LOCAL.engines[0], decode))
    (finding,) = [each for each in findings if each.cause == "HandoffFails"]
    assert finding.remedy.startswith(first)


def test_gateways_are_added_up() -> None:
    one = served(outcomes={"split": 10, "shed": 5}, ttft={"median": 0.3}, tpot={"d": 0.1}, normal={"ttft": 0.2})
    two = served(outcomes={"split": 20, "shed": 5}, ttft={"median": 0.7}, tpot={"d": 0.3}, normal={"ttft": 0.4})
    seen = experience_of([one.state or {}, two.state or {}, {}])
    assert (seen.ended, seen.failures, seen.ttft, dict(seen.tpot)) == (40, 10, 0.7, {"d": 0.3})
    assert seen.normal == {"ttft": 0.2, "tpot": None}


def test_no_gateway_of_a_cluster_is_ready() -> None:
    """Its pods crash or are Pending, so that none of them can be read."""
    found = here(gateway=ObservedGateway(replicas=2, ready=0, settled=False))
    assert impacts(found) == ["Clients get no answer: no gateway answers"]
    assert impacts(here(gateway=ObservedGateway(replicas=2, ready=1, settled=False))) == []


def test_a_client_at_its_own_limit_is_a_note() -> None:
    found = here(served(outcomes={"split": 400, "shed": 50}, sheds={"client_limit": 50}))
    assert impacts(found) == causes(found) == []
    assert [each.cause for each in found] == ["RequestsShed"]


def test_a_deployment_that_is_set_not_to_split_lacks_nothing() -> None:
    without = served(endpoint(Role.DECODE, inFlight=2, limit=2.0))
    never = replace(without, state={**(without.state or {}), "split": "Never"})
    assert impacts(here(without)) == [NO_PREFILL]
    assert impacts(here(never)) == []


WAITS = {"to_prefill": {"median": 0.1}, "prefill": {"median": 1.0}, "handoff": {"median": 4.0}}


@pytest.mark.parametrize(
    ("order", "phases", "cause"),
    [
        ("PrefillFirst", WAITS, "HandoffSlow"),
        ("PrefillFirst", WAITS | {"prefill": {"median": 5.0}}, "PrefillSlow"),
        ("PrefillFirst", WAITS | {"to_prefill": {"median": 9.0}}, "PrefillConnectSlow"),
        ("DecodeFirst", WAITS | {"prefill": {"median": 3.9}}, "PrefillSlow"),
    ],
)
def test_most_of_a_late_first_token_is_one_wait(order: str, phases: dict[str, Any], cause: str) -> None:
    ends = [{**each, "order": order} for each in PAIR]
    late: dict[str, Any] = {"ttft": {"count": 40, "median": 5.0}, "phases": phases}
    assert causes(here(served(*ends, **late))) == [cause]
    assert causes(here(served(*ends, **late, queue={"count": 40, "median": 3.0}, queued=22))) == ["QueueLong"]
    assert here(served(*ends, phases=phases)) == [], "first tokens are not late"


def test_no_wait_is_named_if_none_is_most_of_it() -> None:
    even = {name: {"median": 2.0} for name in WAITS}
    assert causes(here(served(ttft={"count": 40, "median": 6.0}, phases=even))) == []


def test_an_engine_that_fails_and_recovers_again_and_again() -> None:
    (finding,) = here(served(restarts={"qwen-decode-a-1": 2, "qwen-prefill-a-1": 1}))
    assert finding.cause == "EngineFlapping"
    assert finding.sentence == "qwen-decode-a-1 failed and recovered 2 times in the last 2 minutes"


def test_the_engine_whose_answers_break_is_named() -> None:
    failing: dict[str, Any] = {"outcomes": {"split": 970, "broken": 30}}
    findings = here(served(**failing, broken={"qwen-decode-a-1": 29, "d2": 1}))
    assert [each.sentence for each in findings[1:]] == [
        "29 of the 30 answers of the last 2 minutes that broke were those of qwen-decode-a-1"
    ]
    assert causes(here(served(**failing, broken={"qwen-decode-a-1": 15, "d2": 15}))) == [], "no engine is to blame"
    assert here(served(broken={"qwen-decode-a-1": 2})) == []
