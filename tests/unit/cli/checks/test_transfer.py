"""Checks whether KV moves: transfer probes, the engines' logs, and token counters."""

import dataclasses
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.verification import Broken, Cause, Verdict
from pdx_api.verification import Finding as VerificationResult
from pdx_api.vllm_metrics import PromptTokens
from pdx_cli.checks.findings import is_healthy
from pdx_cli.sources.observation import Gateway
from tests.doctor_observations import HEALTHY, assert_found, body, condition, endpoint, engine, found, gateway

BLOCKED_LOG = (
    "(EngineCore pid=7) ERROR 05-04 11:59:00 [base_worker.py:1260] NIXL transfer failure: handshake_failed | Context: "
    "{'failure_type': 'handshake_failed', 'request_id': 'x', 'remote_host': '10.0.0.7', 'remote_port': 5600}\n"
    "zmq.error.Again: Resource temporarily unavailable\n"
)
MISMATCH_LOG = "RuntimeError: NIXL compatibility hash mismatch. Local: 1, Remote: 2. Prefill and decode instances ..."
BROKEN_CONDITION = condition(
    "KVTransferVerified",
    "False",
    "PortsBlocked",
    "prefill qwen-prefill-a-1 to decode qwen-decode-a-1: no token came from outside; ports between them are blocked",
)
BROKEN_PAIR = Broken(
    "qwen-prefill-a-1", "qwen-decode-a-1", "the decode engine has computed the prompt by itself", Cause.PORTS
)
BROKEN_RESULT = {
    "finding": VerificationResult(Verdict.BROKEN, possible=1, broken=(BROKEN_PAIR,), broken_pairs=1).as_json()
}


def recent(name: str, split: int, prompt: int, remote: int = 0, cached: int = 0) -> Gateway:
    """A gateway that has served for a week, with its D's counts of the last half minute."""
    counts = {"promptTokens": prompt, "outside": remote, "computed": prompt - remote - cached}
    share = {"split": split, "decode": {"qwen-decode-a-1": counts}}
    served = gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE))
    return Gateway(name, {**(served.state or {}), "arrivals": share})


def suspended(*pairs: tuple[str, str]) -> Gateway:
    """A gateway that splits no request over these pairs. It has two P's and two D's."""
    ends = [endpoint(role, name=name) for role, names in NAMES.items() for name in names]
    served = gateway(*ends)
    return Gateway("qwen-gateway-1", {**(served.state or {}), "suspendedPairs": [list(pair) for pair in pairs]})


NAMES = {Role.PREFILL: ("p1", "p2"), Role.DECODE: ("d1", "d2")}
SETUPS: list[Any] = [
    pytest.param(
        {"gateways": (suspended(("p1", "d1"), ("p2", "d1")),)},
        "SplittingSuspended",
        ["over p1 and d1 (nor over 1 other pair)", "every request for d1 is served whole", "returns by itself"],
        id="pairs of one D suspended",
    ),
    pytest.param(
        {"gateways": (suspended(("p1", "d1")),)},
        "SplittingSuspended",
        ["No request is split over p1 and d1, because KV does not move", "Requests are answered"],
        id="one pair suspended",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, log=BLOCKED_LOG))},
        "PortsBlocked",
        ["qwen-decode-a-1", "side channel at 10.0.0.7:5600", "5600", "NetworkPolicies"],
        id="side channel blocked, by D's log",
    ),
    pytest.param(
        {"body": body(KVTransferVerified=BROKEN_CONDITION)},
        "PortsBlocked",
        ["Transfer probes fail", "qwen-prefill-a-1 to decode qwen-decode-a-1", "ports between them are blocked"],
        id="side channel blocked, by the condition",
    ),
    pytest.param(
        {"body": body(KVTransferVerified=condition("KVTransferVerified", "False", "HandoffFails", "status 500"))},
        "HandoffFails",
        ["status 500", "arguments that the operator wrote, so the network is likely", "NetworkPolicies"],
        id="a hand-off fails although the arguments are right",
    ),
    pytest.param(
        {"gateways": (dataclasses.replace(HEALTHY.gateways[0], verification=BROKEN_RESULT),)},
        "PortsBlocked",
        [
            "from qwen-prefill-a-1 to qwen-decode-a-1",
            "the decode engine has computed the prompt by itself",
            "network policies",
        ],
        id="side channel blocked, by the gateway's transfer probes",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, log=MISMATCH_LOG))},
        "EnginesDiffer",
        ["qwen-decode-a-1", "model string"],
        id="another model string, by D's log",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, tokens=PromptTokens(60_000, 0, 60_000)))},
        "KVNotMoving",
        ["90 requests were split", "none of the 60000 prompt tokens", "came through the connector"],
        id="decode computes everything again",
    ),
    pytest.param(
        {"gateways": (recent("one", 3, 4000), recent("two", 4, 3000))},
        "KVNotMoving",
        ["In the last half minute 7 requests", "none of the 3000 prompt tokens"],
        id="decode has begun to compute everything again",
    ),
    pytest.param(
        {"gateways": (recent("one", 20, 40_000, cached=24_000),)},
        "KVNotMoving",
        ["they computed 16000 of them again"],
        id="decode has the start of the prompts cached and computes the rest again",
    ),
]


@pytest.mark.parametrize(("changes", "cause", "parts"), SETUPS)
def test_cause(changes: dict[str, Any], cause: str, parts: list[str]) -> None:
    assert_found(changes, cause, parts)


def test_success_outweighs_older_log_lines() -> None:
    verified = condition("KVTransferVerified", "True", "Verified", "4 of 4 pairs")
    since = f"{BLOCKED_LOG}INFO NIXL compatibility check passed (hash: 1)\n"
    assert found(engines=(engine(Role.DECODE, log=since),)) == []
    logged = (engine(Role.DECODE, log=BLOCKED_LOG),)
    assert found(body=body(KVTransferVerified=verified), engines=logged) == []
    result = VerificationResult(Verdict.VERIFIED, pairs=1, possible=1).as_json()
    gateways = (dataclasses.replace(HEALTHY.gateways[0], verification={"finding": result}),)
    assert found(gateways=gateways, engines=logged) == []


@pytest.mark.parametrize(("reason", "noted"), [("NotVerifiedYet", []), ("GatewayUnreachable", ["GatewayUnreachable"])])
def test_unverified_is_at_most_a_note(reason: str, noted: list[str]) -> None:
    unverified = condition("KVTransferVerified", "Unknown", reason, "no gateway has reported a transfer probe")
    findings = found(body=body(KVTransferVerified=unverified))
    assert [finding.cause for finding in findings] == noted
    assert is_healthy(findings)


@pytest.mark.parametrize(("split", "prompt", "remote"), [(4, 4000, 0), (9, 900, 0), (9, 4000, 3000), (0, 0, 0)])
def test_little_recent_traffic_is_no_finding(split: int, prompt: int, remote: int) -> None:
    assert found(gateways=(recent("one", split, prompt, remote),)) == []


@pytest.mark.parametrize("uncached", [0, 2_000])
def test_prompts_in_the_prefix_cache_are_no_finding(uncached: int) -> None:
    """D still computes the block that is not full."""
    assert found(gateways=(recent("one", 20, 40_000, cached=40_000 - uncached),)) == []
    cached = engine(Role.DECODE, tokens=PromptTokens(60_000, 0, uncached))
    assert found(engines=(engine(Role.PREFILL), cached)) == []


def _page(connector: str, failed: int, moved: int = 0) -> str:
    counts = f'vllm:{connector}_num_failed_transfers_total{{engine="0"}} {failed}\n'
    seconds = f'vllm:{connector}_xfer_time_seconds_count{{engine="0"}} {moved}\n'
    return counts + (f"{seconds}{seconds.replace('_count', '_sum')}" if moved else "")


@pytest.mark.parametrize(("moved", "found_some"), [(100_000, False), (100, True)])
def test_few_failures_of_an_engine_to_which_others_send(moved: int, found_some: bool) -> None:
    prefill = engine(Role.PREFILL, metrics=_page("mooncake", 0, moved))
    decode = engine(Role.DECODE, metrics='vllm:mooncake_num_failed_recvs_total{engine="0"} 5\n')
    causes = {each.cause for each in found(engines=(prefill, decode))}
    assert ("TransfersFailed" in causes) is found_some


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (_page("nixl", 3), ["3 transfers of KV have failed on the decode engine qwen-decode-a-1 since its start"]),
        (_page("mooncake", 12, 1000), ["12 transfers of KV have failed on the decode engine qwen-decode-a-1"]),
        ('vllm:mooncake_num_failed_recvs_total{engine="0"} 7\n' + _page("mooncake", 0), ["7 transfers of KV"]),
        (_page("nixl", 2), []),
        (_page("nixl", 9, 1000), []),
    ],
)
def test_transfers_that_failed_by_the_count_of_an_engine(page: str, expected: list[str]) -> None:
    engines = engine(Role.PREFILL), engine(Role.DECODE, metrics=page)
    findings = [each for each in found(engines=engines) if each.cause == "TransfersFailed"]
    assert len(findings) == len(expected)
    assert all(part in each.sentence for part, each in zip(expected, findings, strict=True))
    assert is_healthy(findings), "a note"
    blocked = engine(Role.PREFILL), engine(Role.DECODE, metrics=page, log=BLOCKED_LOG)
    assert "TransfersFailed" not in {each.cause for each in found(engines=blocked)}, "the log has the cause"
    causes = {each.cause for each in found(engines=engines, body=body(KVTransferVerified=BROKEN_CONDITION))}
    assert "PortsBlocked" in causes
    assert "TransfersFailed" not in causes, "the probes have the cause"
