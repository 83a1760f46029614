"""The findings of a `pdx up`: one for each cause, with the place of the log, and in words of this machine."""

import dataclasses
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.verification import Broken, Verdict
from pdx_api.verification import Cause as PairCause
from pdx_api.verification import Finding as Verified
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, Severity, examine, log_of
from pdx_cli.sources.observation import EndedProcess, Gateway, Starting
from pdx_proxy.health.warm_up import explain
from pdx_proxy.http.upstream.failures import BadAnswer, Reason
from tests.doctor_observations import LOCAL, endpoint, found, gateway

DECODE = LOCAL.engines[1]
LOG = "INFO 05-04 12:00:00 [a.py:1] loading\nERROR 05-04 12:00:01 [core.py:1] torch.OutOfMemoryError: out of memory\n"


def here(**changes: Any) -> list[Finding]:
    return examine(dataclasses.replace(LOCAL, **changes), CHECKS)


def down(**more: Any) -> Any:
    return dataclasses.replace(
        DECODE, problem="connection refused", log=LOG, log_source="/run/logs/decode-0.log", **more
    )


def test_a_start_is_one_finding_that_waits() -> None:
    engines = tuple(dataclasses.replace(e, problem="connection refused") for e in LOCAL.engines)
    silent = (Gateway("gateway", None, "connection refused"),)
    (finding,) = here(engines=engines, gateways=silent, starting=Starting(3, 0, 6))
    assert (finding.severity, finding.cause) == (Severity.WAIT, "Starting")
    assert finding.sentence == "`pdx up` has been starting for 3 s: 0 of 6 engines are healthy"


def test_a_process_that_ended_during_the_start_is_wrong() -> None:
    ended = (EndedProcess("decode-0", LOG, "/run/logs/decode-0.log"),)
    (finding,) = [f for f in here(dead=ended, starting=Starting(3, 0, 6)) if f.severity is Severity.WRONG]
    assert finding.cause == "ProcessEnded"
    assert "/run/logs/decode-0.log" in finding.remedy
    assert "torch.OutOfMemoryError: out of memory" in finding.remedy


def test_an_engine_that_is_down_is_one_finding() -> None:
    endpoints = (
        endpoint(Role.PREFILL, "Warming", f"{DECODE.name}: status 500"),
        endpoint(Role.DECODE, "Suspect", "cannot connect: connection refused"),
    )
    impact, finding = here(engines=(LOCAL.engines[0], down()), gateways=(gateway(*endpoints),))
    assert impact.sentence == "Every request fails: no engine that can answer clients serves"
    assert finding.cause == "EngineUnhealthy"
    assert finding.remedy.splitlines() == [
        "Its log: /run/logs/decode-0.log",
        "Its last error: torch.OutOfMemoryError: out of memory",
    ]


def test_an_engine_in_a_cluster_has_its_kubectl_line() -> None:
    engine = dataclasses.replace(down(), log_source="kubectl logs -n llm qwen-decode-a-1 -c engine")
    (finding,) = [f for f in found(engines=(engine,)) if f.cause == "EngineUnhealthy"]
    assert "Its log: kubectl logs -n llm qwen-decode-a-1 -c engine" in finding.remedy


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("cannot connect: connection refused", "EngineNotReached"),
        ("answered 401 Unauthorized", "EngineKeyRefused"),
        ("it answers nonsense", "EngineLeftOut"),
    ],
)
def test_advice_for_this_machine_has_no_pods(reason: str, cause: str) -> None:
    endpoints = (endpoint(Role.PREFILL), endpoint(Role.DECODE, "Suspect", reason))
    _, finding = here(gateways=(gateway(*endpoints),))
    assert finding.cause == cause
    assert not {"pod", "pods", "NetworkPolicy", "kubectl"} & set(finding.remedy.replace(",", " ").split())


@pytest.mark.parametrize("has_key", [True, False])
def test_a_key_that_the_gateway_lacks_is_named(has_key: bool) -> None:
    failure = BadAnswer("d", "status 401: Unauthorized", Reason.STATUS, 401, b"")
    reason = explain(failure, has_key=has_key)
    _, finding = here(gateways=(gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE, "Cold", reason)),))
    assert finding.cause == "EngineKeyRefused"
    assert ("apiKeySecretRef" in finding.remedy) is not has_key


@pytest.mark.parametrize("local", [True, False])
def test_an_error_status_points_at_the_wiring_unless_the_arguments_are_right(local: bool) -> None:
    reason = "qwen-decode-x: status 500"
    wired = {"connector": "NIXL", "order": "PrefillFirst"}
    gateways = (gateway(endpoint(Role.PREFILL, "Warming", reason, **wired), endpoint(Role.DECODE)),)
    findings = here(gateways=gateways) if local else found(gateways=gateways)
    (finding,) = [f for f in findings if f.cause == "HandoffFails"]
    if not local:
        assert finding.remedy.startswith("The engines have the arguments that the operator wrote")
        return
    first, second = finding.remedy.splitlines()
    assert first.startswith("Likely: one of the two was not started for NIXL with order PrefillFirst")
    assert "5600" in second
    assert len(finding.sentence) + len(finding.remedy) < 400


@pytest.mark.parametrize("logged", [True, False])
def test_a_failing_hand_off_is_one_finding(logged: bool) -> None:
    text = "status 500: Internal server error"
    names = [(f"prefill-{p}", "decode-0") for p in range(3)]
    seen = f"the hand-off failed at decode-0: {text}"
    broken = tuple(Broken(*pair, seen, PairCause.HANDOFF) for pair in names)
    result = Verified(Verdict.BROKEN, "", 0, 3, broken, 3).as_json()
    endpoints = [endpoint(Role.PREFILL, "Warming", f"decode-0: {text}"), endpoint(Role.DECODE)]
    gateways = (dataclasses.replace(gateway(*endpoints), verification={"finding": result}),)
    blocked = "NIXL transfer failure: handshake_failed {'remote_host': '127.0.0.1', 'remote_port': 5600}"
    engines = (LOCAL.engines[0], dataclasses.replace(DECODE, log=blocked if logged else ""))
    (finding,) = [f for f in here(gateways=gateways, engines=engines) if f.severity is Severity.WRONG]
    if logged:
        assert finding.cause == "PortsBlocked", "D's log names why it answers an error"
        return
    assert finding.cause == "HandoffFails"
    assert finding.sentence.endswith(f"from prefill-0 to decode-0 (and in 2 other pairs): {seen}")
    assert finding.remedy.startswith("Likely: either a port between the two is blocked")


def test_the_last_line_of_a_log_is_an_error_only_if_it_is_one() -> None:
    assert log_of("/a.log", "pdx sim: serving on http://127.0.0.1:1\n").endswith(
        "\nIts last line: pdx sim: serving on http://127.0.0.1:1"
    )
    assert "Its last error: torch.OutOfMemoryError" in log_of("/a.log", LOG)


def test_a_log_without_lines_or_place() -> None:
    assert log_of("", "") == "Read its log where you started it"
    assert log_of("/a.log", "") == "Its log: /a.log"
