"""From what gateways and engines say to sentences: why KV does not move, and who is left out."""

import dataclasses
from typing import Any

import pytest

from pdx_api.names import Mode, Role
from pdx_api.verification import Broken, Cause, Verdict
from pdx_api.verification import Finding as TransferPoller
from pdx_cli.checks.findings import Severity, is_healthy
from pdx_cli.sources.picture import Engine, Gateway, Tokens
from tests.doctor_pictures import (
    HEALTHY,
    args,
    assert_named,
    body,
    condition,
    endpoint,
    engine,
    found,
    gateway,
    without_kv,
)

OTHER_MODEL = ("serve", "/models/qwen", *args(Role.DECODE)[2:])
BLOCKED_LOG = (
    "(EngineCore pid=7) ERROR 05-04 11:59:00 [base_worker.py:1260] NIXL transfer failure: handshake_failed | Context: "
    "{'failure_type': 'handshake_failed', 'request_id': 'x', 'remote_host': '10.0.0.7', 'remote_port': 5600}\n"
    "zmq.error.Again: Resource temporarily unavailable\n"
)
MISMATCH_LOG = "RuntimeError: NIXL compatibility hash mismatch. Local: 1, Remote: 2. Prefill and decode instances ..."
CANARY = condition(
    "KVTransferVerified",
    "False",
    "PortsBlocked",
    "prefill qwen-prefill-a-1 to decode qwen-decode-a-1: no token came from outside; ports between them are blocked",
)
SEEN = Broken("qwen-prefill-a-1", "qwen-decode-a-1", "D has computed the prompt by itself", Cause.PORTS)
CANARIES = {"finding": TransferPoller(Verdict.BROKEN, possible=1, broken=(SEEN,), broken_pairs=1).as_json()}


def lately(name: str, split: int, prompt: int, outside: int = 0, cached: int = 0) -> Gateway:
    """A gateway that has served since a week, with what its D's have counted in the last half minute."""
    counted = {"promptTokens": prompt, "outside": outside, "computed": prompt - outside - cached}
    arrivals = {"split": split, "decode": {"qwen-decode-a-1": counted}}
    served = gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE))
    return Gateway(name, {**(served.state or {}), "arrivals": arrivals})


SETUPS: list[Any] = [
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, log=BLOCKED_LOG))},
        "PortsBlocked",
        ["qwen-decode-a-1", "side channel at 10.0.0.7:5600", "5600", "NetworkPolicies"],
        id="1 side channel blocked, by D's log",
    ),
    pytest.param(
        {"body": body(KVTransferVerified=CANARY)},
        "PortsBlocked",
        ["The canaries show", "qwen-prefill-a-1 to decode qwen-decode-a-1", "ports between them are blocked"],
        id="1 side channel blocked, by the canary",
    ),
    pytest.param(
        {"gateways": (dataclasses.replace(HEALTHY.gateways[0], canary=CANARIES),)},
        "PortsBlocked",
        ["from qwen-prefill-a-1 to qwen-decode-a-1", "D has computed the prompt by itself", "network policies"],
        id="1 side channel blocked, by the gateway's canary",
    ),
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
        id="1 side channel blocked, by the gateway's warm-up",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, args=OTHER_MODEL, rendered=OTHER_MODEL))},
        "ModelsDiffer",
        ["'Qwen/Qwen3-8B'", "'/models/qwen'", "qwen-decode-a-1", "spec.model"],
        id="2 another model string, by the flags",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL, args=()), engine(Role.DECODE, args=(), model="/models/qwen"))},
        "ModelsDiffer",
        ["'/models/qwen'", "vLLM refuses KV"],
        id="2 another model string, by /v1/models",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, log=MISMATCH_LOG))},
        "EnginesDiffer",
        ["qwen-decode-a-1", "model string"],
        id="2 another model string, by D's log",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL, args=without_kv(Role.PREFILL)), engine(Role.DECODE))},
        "ConnectorOff",
        ["prefill engine qwen-prefill-a-1", "--kv-transfer-config"],
        id="3 P's connector removed, by the flags",
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
        id="3 P's connector removed, by the gateway's warm-up",
    ),
    pytest.param(
        {
            "engines": (engine(Role.PREFILL), engine(Role.DECODE, tokens=Tokens(60_000, 0, 60_000))),
        },
        "KVNotMoving",
        ["90 requests went over a prefill engine", "60000 prompt tokens", "none came from outside"],
        id="14 decode computes everything again",
    ),
    pytest.param(
        {"gateways": (lately("one", 3, 4000), lately("two", 4, 3000))},
        "KVNotMoving",
        ["In the last half minute 7 requests", "of the 3000 prompt tokens", "none came from outside"],
        id="14 decode has begun to compute everything again",
    ),
    pytest.param(
        {"gateways": (lately("one", 20, 40_000, cached=24_000),)},
        "KVNotMoving",
        ["decode computed 16000 of them again"],
        id="14 decode computes again what follows of a prompt's beginning that it holds",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, version="0.31.0"))},
        "VersionsDiffer",
        ["vLLM 0.32.0", "0.31.0", "spec.engine.image"],
        id="14 another version of vLLM",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, args=(*args(Role.DECODE), "--dtype", "float16")))},
        "ArgumentsDiffer",
        ["--dtype is float16 instead of unset"],
        id="14 other flags than the operator wrote",
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
        id="14 an engine that the gateway does not reach",
    ),
    pytest.param(
        {"gateways": (Gateway("qwen-gateway-1", None, "no answer within 10 s"),)},
        "GatewaySilent",
        ["qwen-gateway-1", "no answer within 10 s"],
        id="14 a gateway that does not answer",
    ),
]


@pytest.mark.parametrize(("changes", "cause", "words"), SETUPS)
def test_the_cause_is_named(changes: dict[str, Any], cause: str, words: list[str]) -> None:
    assert_named(changes, cause, words)


def test_old_lines_of_a_log_do_not_outweigh_the_canary() -> None:
    verified = condition("KVTransferVerified", "True", "Verified", "4 of 4 pairs")
    since = f"{BLOCKED_LOG}INFO NIXL compatibility check passed (hash: 1)\n"
    assert found(engines=(engine(Role.DECODE, log=since),)) == []
    logged = (engine(Role.DECODE, log=BLOCKED_LOG),)
    assert found(body=body(KVTransferVerified=verified), engines=logged) == []
    seen = dataclasses.replace(
        HEALTHY.gateways[0], canary={"finding": TransferPoller(Verdict.VERIFIED, pairs=1, possible=1).as_json()}
    )
    assert found(gateways=(seen,), engines=logged) == []


@pytest.mark.parametrize(("reason", "told"), [("NotTriedYet", []), ("GatewayUnreachable", ["GatewayUnreachable"])])
def test_that_nothing_is_known_of_kv_is_at_most_noted(reason: str, told: list[str]) -> None:
    unknown = condition("KVTransferVerified", "Unknown", reason, "no gateway has told of a canary")
    findings = found(body=body(KVTransferVerified=unknown))
    assert [finding.cause for finding in findings] == told
    assert is_healthy(findings)


@pytest.mark.parametrize(("split", "prompt", "outside"), [(4, 4000, 0), (9, 900, 0), (9, 4000, 3000), (0, 0, 0)])
def test_that_little_came_lately_is_no_cause(split: int, prompt: int, outside: int) -> None:
    assert found(gateways=(lately("one", split, prompt, outside),)) == []


@pytest.mark.parametrize("left", [0, 2_000])
def test_prompts_that_decode_holds_in_its_own_cache_are_no_cause(left: int) -> None:
    """D still computes what fills no block."""
    assert found(gateways=(lately("one", 20, 40_000, cached=40_000 - left),)) == []
    held = engine(Role.DECODE, tokens=Tokens(60_000, 0, left))
    assert found(engines=(engine(Role.PREFILL), held)) == []


def test_prompts_served_whole_are_only_noted() -> None:
    findings = found(gateways=(gateway(endpoint(Role.DECODE), outcomes={"whole": 40}),))
    assert [(f.severity, f.cause) for f in findings] == [(Severity.NOTE, "NothingSplit")]
    assert is_healthy(findings)


def test_members_of_json_may_change_their_order() -> None:
    given = list(args(Role.DECODE))
    place = given.index("--kv-transfer-config") + 1
    given[place] = "{" + ",".join(reversed(given[place].strip("{}").split(", "))) + "}"
    assert found(engines=(engine(Role.PREFILL), engine(Role.DECODE, args=tuple(given)))) == []


def test_the_connector_of_an_aggregated_engine_is_not_missed() -> None:
    alone = Engine("qwen-aggregated-a-1", Role.AGGREGATED, "a", ("serve", "Qwen/Qwen3-8B"))
    assert found(mode=Mode.AGGREGATED, engines=(alone,)) == []
