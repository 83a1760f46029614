"""Checks of a cluster's objects: pods that do not start, rights, Secrets, the operator, rollouts."""

from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.spec.parse import parse
from pdx_cli.checks.findings import Severity, is_healthy
from pdx_cli.sources.observation import Operator, Rights, SecretReference, WarningEvent
from tests.doctor_observations import (
    BODY,
    CRASH,
    HEALTHY,
    NO_GATEWAY,
    SPEC,
    assert_found,
    body,
    broken_decode,
    condition,
    found,
    gateway,
    pod,
    pool,
)

IMAGE = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "pull access denied, authorization failed"}}}
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."
NO_MODEL = "OSError: Qwen/Qwen3-9B is not a local folder and is not a valid model identifier listed on the Hub"
KILLED = {**CRASH, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
QUOTA = 'pods "qwen-decode-a-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 8'

SETUPS: list[Any] = [
    pytest.param(
        broken_decode(**IMAGE),
        "ImagePullFailed",
        ["vllm/vllm-openai:v9 cannot be pulled", "imagePullSecrets"],
        id="an image that cannot be pulled",
    ),
    pytest.param(
        broken_decode() | {"pods": (pod("prefill"), pod("decode", False, unschedulable=NO_GPU))},
        "Unschedulable",
        ["no node has a free nvidia.com/gpu", "free one or add a node"],
        id="no free GPU",
    ),
    pytest.param(
        broken_decode(**CRASH, lastState={"terminated": {"exitCode": 1, "reason": "Error", "message": NO_MODEL}}),
        "ModelNotFound",
        ["Qwen/Qwen3-9B is not a local folder", "correct spec.model.name"],
        id="no such model",
    ),
    pytest.param(
        broken_decode(**CRASH, lastState={"terminated": {"exitCode": 1, "reason": "Error", "message": "Error: odd"}}),
        "Crashing",
        ["exit code 1, saying: Error: odd"],
        id="a crash loop with its last line",
    ),
    pytest.param(
        {
            "pods": (
                *HEALTHY.pods,
                pod("lmcache", False, **CRASH, lastState={"terminated": {"exitCode": 1, "message": "Error: odd"}}),
            )
        },
        "Crashing",
        ["The lmcache server: it ends with exit code 1, saying: Error: odd"],
        id="a side service in a crash loop",
    ),
    pytest.param(broken_decode(**KILLED), "OutOfMemory", ["resources.limits.memory"], id="killed for its memory"),
    pytest.param(
        {"rights": Rights(missing=("RoleBinding qwen-gateway",)), "gateways": (gateway(outcomes={}),)},
        "GatewayRights",
        ["may not list pods", "RoleBinding qwen-gateway is missing", "kubectl auth can-i list pods -n llm"],
        id="gateway without rights, by its RoleBinding",
    ),
    pytest.param(
        {
            "rights": Rights(),
            "gateways": (gateway(log="pdx gateway: cannot watch pods, keeps those that it knows: pods is forbidden."),),
        },
        "GatewayRights",
        ["cannot list pods", "pods is forbidden", "--as=system:serviceaccount:llm:qwen-gateway"],
        id="a gateway without rights, by its log",
    ),
    pytest.param(
        {
            "rights": Rights(),
            "gateways": (gateway(log="pdx gateway: cannot watch pods, keeps those that it knows: Unauthorized."),),
        },
        "GatewayRights",
        ["cannot list pods", "Unauthorized", "--as=system:serviceaccount:llm:qwen-gateway"],
        id="a gateway whose token is refused, by its log",
    ),
    pytest.param(
        {"rights": Rights(lists=False)}, "GatewayRights", ["Role of the gateway does not let"], id="a Role that was cut"
    ),
    pytest.param(
        {
            "secrets": (SecretReference("clients", "keys", "spec.gateway.auth.secretRef", False),),
            "body": body(Ready=NO_GATEWAY),
        },
        "SecretNotFound",
        ["Secret clients", "spec.gateway.auth.secretRef", "kubectl create secret generic clients -n llm"],
        id="a missing Secret",
    ),
    pytest.param(
        {
            "secrets": (SecretReference("clients", "keys", "spec.gateway.auth.secretRef", None),),
            "events": (
                WarningEvent("Pod", "qwen-gateway-1", "FailedMount", 'SetUp failed: secret "clients" not found'),
            ),
        },
        "SecretNotFound",
        ["Secret clients"],
        id="a missing Secret, by an Event",
    ),
    pytest.param(
        broken_decode() | {"pools": (pool(Role.PREFILL), pool(Role.DECODE, ready=0, failure=QUOTA)), "pods": ()},
        "QuotaExceeded",
        ["the namespace's quota refuses its pod", "raise the quota"],
        id="a quota",
    ),
    pytest.param(
        {
            "body": body(generation=3, observed=2),
            "operator": Operator(seen=True, ready=0, replicas=1, namespaces=("pdx-system",)),
        },
        "OperatorNotRunning",
        ["it has seen generation 2, the newest is 3", "the operator (namespace pdx-system) is not ready"],
        id="an operator that does not run",
    ),
    pytest.param(
        {"body": body(observed=None), "operator": Operator()},
        "OperatorBehind",
        ["No operator has processed the object yet", "watchNamespaces"],
        id="an object that no operator has processed",
    ),
    pytest.param(
        {"pools": (pool(Role.PREFILL, revision="b"), pool(Role.DECODE, revision="a"))},
        "NoPair",
        ["revision b", "decode engines have revision a"],
        id="P and D of different revisions",
    ),
    pytest.param(
        {"body": body(Progressing=condition("Progressing", "True", "RollingOut", "1 of 2 new pairs"))},
        "RolloutStuck",
        ["for 240 minutes: 1 of 2 new pairs", "maxSurge: 0"],
        id="a rollout that does not move",
    ),
    pytest.param(
        {"stalled": ("qwen-decode-b",)}, "RolloutStuck", ["Deployment qwen-decode-b made no progress"], id="stalled"
    ),
    pytest.param(
        {"body": body(Ready=NO_GATEWAY)}, "GatewayNotReady", ["No gateway is ready", "No client"], id="no gateway"
    ),
    pytest.param(broken_decode(), "DecodeNotReady", ["No decode engine is ready"], id="no decode engine"),
    pytest.param(
        {"body": body(Degraded=condition("Degraded", "True", "ChildRejected", "the API server refuses the Service"))},
        "ChildRejected",
        ["The operator reports: the API server refuses the Service"],
        id="what only the operator reports",
    ),
]


@pytest.mark.parametrize(("changes", "cause", "parts"), SETUPS)
def test_cause(changes: dict[str, Any], cause: str, parts: list[str]) -> None:
    assert_found(changes, cause, parts)


@pytest.mark.parametrize(("reason", "causes"), [("RollingOut", []), ("PrefillNotReady", ["PrefillNotReady"])])
def test_a_rollout_that_serves_is_no_finding(reason: str, causes: list[str]) -> None:
    ready = condition("Ready", "False", reason, "something is on its way")
    available = condition("Available", "True", "Serving", "requests are served")
    assert [finding.cause for finding in found(body=body(Available=available, Ready=ready))] == causes


def test_consequences_come_after_their_cause() -> None:
    findings = found(**broken_decode(**IMAGE))
    assert [(f.severity, f.cause) for f in findings] == [
        (Severity.IMPACT, "Unavailable"),
        (Severity.WRONG, "ImagePullFailed"),
        (Severity.FOLLOWS, "DecodeNotReady"),
    ]


def test_a_recent_change_is_a_wait() -> None:
    findings = found(body=body(generation=3, observed=2, changed="2026-05-04T11:59:55Z"))
    assert [(f.severity, f.cause) for f in findings] == [(Severity.WAIT, "OperatorBehind")]
    assert not is_healthy(findings)


def test_loading_engines_are_a_wait() -> None:
    loading = {"state": {"running": {"startedAt": "2026-05-04T11:58:00Z"}}, "started": False, "restartCount": 0}
    findings = found(**broken_decode(**loading))
    assert [(f.severity, f.cause) for f in findings[:2]] == [
        (Severity.IMPACT, "Unavailable"),
        (Severity.WAIT, "Loading"),
    ]
    assert all(f.severity is not Severity.WRONG for f in findings)


def test_an_object_without_a_gateway_misses_none_of_its_objects() -> None:
    spec = {**SPEC, "gateway": {"enabled": False}}
    without = {
        "deployment": parse({**BODY, "spec": spec}),
        "gateway": None,
        "gateways": (),
        "pods": (pod("prefill"), pod("decode")),
        "secrets": (),
        "rights": Rights(missing=("ServiceAccount qwen-gateway", "RoleBinding qwen-gateway")),
    }
    assert found(**without) == []
