"""The findings of a `pdx up`: one for each cause, with the place of the log, and in words of this machine."""

import dataclasses
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, Severity, examine, log_of
from pdx_cli.sources.observation import EndedProcess, Gateway, Starting
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
    (finding,) = here(engines=(LOCAL.engines[0], down()), gateways=(gateway(*endpoints),))
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
    (finding,) = here(gateways=(gateway(*endpoints),))
    assert finding.cause == cause
    assert not {"pod", "pods", "NetworkPolicy", "kubectl"} & set(finding.remedy.replace(",", " ").split())


@pytest.mark.parametrize("local", [True, False])
def test_an_error_status_points_at_the_wiring_before_the_network(local: bool) -> None:
    reason = "qwen-decode-x: status 500"
    wired = {"connector": "NIXL", "order": "PrefillFirst"}
    gateways = (gateway(endpoint(Role.PREFILL, "Warming", reason, **wired), endpoint(Role.DECODE)),)
    findings = here(gateways=gateways) if local else found(gateways=gateways)
    (finding,) = [f for f in findings if f.cause == "HandoffFails"]
    assert finding.remedy.startswith(
        "The engine answered, so it is reached. Check that both engines were started for NIXL"
    )
    assert ("NetworkPolicies" in finding.remedy) is not local


def test_a_log_without_lines_or_place() -> None:
    assert log_of("", "") == "Read its log where you started it"
    assert log_of("/a.log", "") == "Its log: /a.log"
