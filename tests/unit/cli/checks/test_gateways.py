"""Checks of gateways: silence, unused endpoints, and requests that were not split."""

from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Severity, examine, is_healthy
from pdx_cli.sources.observation import Gateway
from pdx_proxy.http.upstream.failures import Unready
from tests.doctor_observations import LOCAL, assert_found, endpoint, found, gateway

SETUPS: list[Any] = [
    pytest.param(
        {
            "gateways": (
                gateway(
                    endpoint(Role.PREFILL, "Cold", "qwen-decode-a-1: answered 500 to the warm-up: b'KV load failed'"),
                    endpoint(Role.DECODE),
                ),
            )
        },
        "HandoffFails",
        ["from the prefill engine qwen-prefill-a-1 to the decode engine qwen-decode-a-1", "5600"],
        id="side channel blocked",
    ),
    pytest.param(
        {
            "engines": (),
            "gateways": (
                gateway(
                    endpoint(
                        Role.PREFILL,
                        "Cold",
                        "qwen-prefill-a-1: answered without kv_transfer_params: is its KV connector on?",
                    ),
                    endpoint(Role.DECODE),
                ),
            ),
        },
        "ConnectorOff",
        ["prefill engine qwen-prefill-a-1", "without KV parameters"],
        id="P's connector removed",
    ),
    pytest.param(
        {
            "gateways": (
                gateway(
                    endpoint(Role.PREFILL),
                    endpoint(Role.DECODE, "Cold", "qwen-decode-a-1: cannot connect to 10.0.0.7:8000"),
                ),
            )
        },
        "EngineNotReached",
        ["decode engine qwen-decode-a-1", "service mesh"],
        id="an engine that the gateway does not reach",
    ),
    pytest.param(
        {"gateways": (gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE, "Cold", "no answer within 60 s")),)},
        "EngineHangs",
        ["does not use the decode engine qwen-decode-a-1: no answer within 60 s", "delete its pod"],
        id="an engine that hangs, although its health check answers",
    ),
    pytest.param(
        {
            "gateways": (
                gateway(
                    endpoint(Role.PREFILL, "Suspect", "3 consecutive errors, the last: status 500"),
                    endpoint(Role.DECODE),
                ),
            )
        },
        "EngineLeftOut",
        ["does not use the prefill engine qwen-prefill-a-1: 3 consecutive errors, the last: status 500"],
        id="a prefill engine that was ejected for its own errors",
    ),
    pytest.param(
        {"gateways": (gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE, "Paused", Unready.PAUSED.value)),)},
        "EnginePaused",
        ["decode engine", "is paused", "POST /resume"],
        id="an engine that is paused",
    ),
    pytest.param(
        {"gateways": (gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE, "Retired", Unready.RETIRED.value)),)},
        "RankRetired",
        ["decode engine", "was retired"],
        id="a rank that was retired",
    ),
    pytest.param(
        {"gateways": (Gateway("qwen-gateway-1", None, "no answer within 10 s"),)},
        "GatewaySilent",
        ["qwen-gateway-1", "no answer within 10 s"],
        id="a gateway that does not answer",
    ),
]


@pytest.mark.parametrize(("changes", "cause", "parts"), SETUPS)
def test_cause(changes: dict[str, Any], cause: str, parts: list[str]) -> None:
    assert_found(changes, cause, parts)


def test_a_gateway_of_this_machine_has_no_name() -> None:
    impact, finding = examine(replace(LOCAL, gateways=(Gateway("gateway", None, "connection refused"),)), CHECKS)
    assert impact.sentence == "Clients get no answer: no gateway answers"
    assert finding.sentence == "The gateway does not answer: connection refused"


def test_whole_requests_are_a_note() -> None:
    findings = found(gateways=(gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE), outcomes={"whole": 40}),))
    assert [(f.severity, f.cause) for f in findings] == [(Severity.NOTE, "NothingSplit")]
    assert is_healthy(findings)


@pytest.mark.parametrize(
    ("reasons", "sentence", "is_correct"),
    [
        (
            {"suspended": 38, "short": 2, "path": 0},
            ": 38 came while KV did not move and 2 had short prompts",
            False,
        ),
        ({"parameters": 30, "short": 10}, ": 30 had parameters that cannot be split and 10 had short prompts", True),
        ({"no_prefill": 40}, ": 40 found no prefill engine that serves", False),
        ({"a_reason_of_a_later_version": 40}, "", True),
    ],
)
def test_whole_requests_have_the_reasons_that_the_gateway_counts(
    reasons: dict[str, int], sentence: str, *, is_correct: bool
) -> None:
    counted = gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE), outcomes={"whole": 40})
    (finding,) = found(gateways=(replace(counted, state={**(counted.state or {}), "notSplit": reasons}),))
    assert finding.sentence == f"All 40 requests so far were served by decode engines alone{sentence}"
    assert finding.remedy.startswith("That is correct") is is_correct


def test_the_gateway_that_reaches_no_engine_is_named() -> None:
    lost = replace(gateway(endpoint(Role.DECODE, "Cold", "connection refused")), name="qwen-gateway-2")
    used = gateway(endpoint(Role.DECODE))
    (finding,) = [each for each in found(gateways=(used, lost)) if each.cause == "EngineNotReached"]
    assert finding.sentence == (
        "The gateway qwen-gateway-2, unlike qwen-gateway-1, does not use the decode engine qwen-decode-a-1: connection "
        "refused"
    )
    assert "Deleting the pod of qwen-gateway-2" in finding.remedy
