"""From a picture to sentences: each broken set-up is called by its cause, and a healthy one by nothing."""

import ast
import dataclasses
import importlib
import re
import sys
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pdx_api.connectors.base import Site
from pdx_api.engines import engine_command
from pdx_api.names import API_VERSION, KIND, LABEL_REVISION, LABEL_ROLE, Mode, Role
from pdx_api.parse import parse
from pdx_api.verification import Broken, Cause, Verdict
from pdx_api.verification import Finding as Canaries
from pdx_cli import checks_cluster, checks_serving
from pdx_cli.doctor import CHECKS
from pdx_cli.findings import Finding, Severity, examine, is_healthy
from pdx_cli.main import main
from pdx_cli.picture import Engine, Gateway, Happening, Operator, Picture, Rights, Tokens, WantedSecret
from pdx_operator.observed import GatewayState, PodView, PoolState, pod_view

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
LONG_AGO = "2026-05-04T08:00:00Z"
SPEC: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-8B"},
    "prefill": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
    "decode": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
    "gateway": {"auth": {"secretRef": {"name": "clients"}}},
}
BODY: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "qwen"}, "spec": SPEC}
DEPLOYMENT = parse(BODY)


def condition(kind: str, status: str, reason: str, message: str = "", since: str = LONG_AGO) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def body(generation: int = 2, observed: int | None = 2, changed: str = LONG_AGO, **conditions: Any) -> dict[str, Any]:
    told = {
        "Ready": condition("Ready", "True", "Serving"),
        "Progressing": condition("Progressing", "False", "Complete"),
        "Degraded": condition("Degraded", "False", "NothingFound"),
        **conditions,
    }
    metadata = {"name": "qwen", "generation": generation, "managedFields": [{"time": changed}]}
    status = {"observedGeneration": observed, "conditions": list(told.values())} if observed else {}
    return {**BODY, "metadata": metadata, "status": status}


def args(role: Role, **changes: str) -> tuple[str, ...]:
    site = Site(host="$(POD_IP)", ports={"side-channel": 5600})
    return engine_command(DEPLOYMENT.spec, role, site=site, listen="0.0.0.0", port=8000).args


def engine(role: Role, **more: Any) -> Engine:
    known = {
        "revision": "a",
        "args": args(role),
        "rendered": args(role),
        "version": "0.32.0",
        "model": "Qwen/Qwen3-8B",
        "tokens": Tokens(60_000, 50_000 if role is Role.DECODE else 0),
    }
    return Engine(f"qwen-{role}-a-1", role, **{**known, **more})


def endpoint(role: Role, state: str = "Warm", reason: str | None = None, **more: Any) -> dict[str, Any]:
    name = f"qwen-{role}-a-1"
    return {"name": name, "pod": name, "role": str(role), "state": state, "reason": reason, "lostHandoffs": 0, **more}


def gateway(*endpoints: Mapping[str, Any], outcomes: Mapping[str, int] | None = None, log: str = "") -> Gateway:
    state = {"endpoints": list(endpoints), "outcomes": outcomes or {"split": 90, "whole": 10}}
    return Gateway("qwen-gateway-1", state, log=log)


def pod(role: str, ready: bool = True, *, unschedulable: str = "", **container: Any) -> PodView:
    conditions = [{"type": "Ready", "status": str(ready)}]
    if unschedulable:
        conditions.append({"type": "PodScheduled", "status": "False", "message": unschedulable})
    status = {"name": "engine", "image": "vllm/vllm-openai:v9", "ready": ready, "restartCount": 3, **container}
    revision = {} if role == "gateway" else {LABEL_REVISION: "a"}
    return pod_view(
        {
            "metadata": {"name": f"qwen-{role}-a-1", "labels": {LABEL_ROLE: role, **revision}},
            "spec": {} if unschedulable else {"nodeName": "n"},
            "status": {"conditions": conditions, "containerStatuses": [status] if container else []},
        }
    )


def pool(role: Role, ready: int = 1, revision: str = "a", **more: Any) -> PoolState:
    return PoolState(f"qwen-{role}-{revision}", role, revision, 1, ready, True, **more)


HEALTHY = Picture(
    name="qwen",
    now=NOW,
    namespace="llm",
    mode=Mode.DISAGGREGATED,
    body=body(),
    deployment=DEPLOYMENT,
    operator=Operator(seen=True, ready=1, wanted=1, namespaces=("pdx-system",)),
    pools=(pool(Role.PREFILL), pool(Role.DECODE)),
    gateway=GatewayState(1, 1, True),
    pods=(pod("prefill"), pod("decode"), pod("gateway")),
    secrets=(WantedSecret("clients", "keys", "spec.gateway.auth.secretRef", True),),
    rights=Rights(lists=True),
    gateways=(gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE)),),
    engines=(engine(Role.PREFILL), engine(Role.DECODE)),
)
LOCAL = Picture(
    name="tiny",
    now=NOW,
    mode=Mode.DISAGGREGATED,
    gateways=HEALTHY.gateways,
    engines=tuple(dataclasses.replace(e, rendered=None) for e in HEALTHY.engines),
)
NO_DECODE = condition("Ready", "False", "DecodeNotReady", "no decode engine is ready")
NO_GATEWAY = condition("Ready", "False", "GatewayNotReady", "no gateway is ready")
CRASH = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}


def broken_decode(**container: Any) -> dict[str, Any]:
    """Changes of the healthy picture: its D does not start."""
    return {
        "pools": (pool(Role.PREFILL), pool(Role.DECODE, ready=0)),
        "pods": (pod("prefill"), pod("decode", False, **container), pod("gateway", False)),
        "engines": (engine(Role.PREFILL),),
        "gateways": (gateway(endpoint(Role.PREFILL, "Warming", "waits for a warm decode engine of its revision")),),
        "body": body(Ready=NO_DECODE),
    }


def without_kv(role: Role) -> tuple[str, ...]:
    given = args(role)
    place = given.index("--kv-transfer-config")
    return given[:place] + given[place + 2 :]


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
CANARIES = {"finding": Canaries(Verdict.BROKEN, possible=1, broken=(SEEN,), broken_pairs=1).as_json()}
IMAGE = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "pull access denied, authorization failed"}}}
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."
NO_MODEL = "OSError: Qwen/Qwen3-9B is not a local folder and is not a valid model identifier listed on the Hub"
KILLED = {**CRASH, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
QUOTA = 'pods "qwen-decode-a-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 8'

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
        broken_decode(**IMAGE),
        "ImagePullFailed",
        ["vllm/vllm-openai:v9 cannot be pulled", "imagePullSecrets"],
        id="4 an image that cannot be pulled",
    ),
    pytest.param(
        broken_decode() | {"pods": (pod("prefill"), pod("decode", False, unschedulable=NO_GPU))},
        "Unschedulable",
        ["no node has a free nvidia.com/gpu", "free one or add a node"],
        id="5 no free GPU",
    ),
    pytest.param(
        broken_decode(**CRASH, lastState={"terminated": {"exitCode": 1, "reason": "Error", "message": NO_MODEL}}),
        "ModelNotFound",
        ["Qwen/Qwen3-9B is not a local folder", "correct spec.model.name"],
        id="6 no such model",
    ),
    pytest.param(
        broken_decode(**CRASH, lastState={"terminated": {"exitCode": 1, "reason": "Error", "message": "Error: odd"}}),
        "Crashing",
        ["exit code 1, saying: Error: odd"],
        id="6 a crash loop with its last line",
    ),
    pytest.param(broken_decode(**KILLED), "OutOfMemory", ["resources.limits.memory"], id="7 killed for its memory"),
    pytest.param(
        {"rights": Rights(missing=("RoleBinding qwen-gateway",)), "gateways": (gateway(outcomes={}),)},
        "GatewayRights",
        ["may not see pods", "RoleBinding qwen-gateway is missing", "kubectl auth can-i list pods -n llm"],
        id="8 a gateway without rights, by its RoleBinding",
    ),
    pytest.param(
        {
            "rights": Rights(),
            "gateways": (
                gateway(log="pdx gateway: cannot watch pods, goes on with those it knows: pods is forbidden: 403."),
            ),
        },
        "GatewayRights",
        ["cannot list pods", "pods is forbidden", "--as=system:serviceaccount:llm:qwen-gateway"],
        id="8 a gateway without rights, by its log",
    ),
    pytest.param(
        {"rights": Rights(lists=False)}, "GatewayRights", ["Role qwen-gateway does not let"], id="8 a Role that was cut"
    ),
    pytest.param(
        {
            "secrets": (WantedSecret("clients", "keys", "spec.gateway.auth.secretRef", False),),
            "body": body(Ready=NO_GATEWAY),
        },
        "SecretNotFound",
        ["Secret clients", "spec.gateway.auth.secretRef", "kubectl create secret generic clients -n llm"],
        id="9 a missing Secret",
    ),
    pytest.param(
        {
            "secrets": (WantedSecret("clients", "keys", "spec.gateway.auth.secretRef", None),),
            "events": (Happening("Pod", "qwen-gateway-1", "FailedMount", 'SetUp failed: secret "clients" not found'),),
        },
        "SecretNotFound",
        ["Secret clients"],
        id="9 a missing Secret, by an Event",
    ),
    pytest.param(
        broken_decode() | {"pools": (pool(Role.PREFILL), pool(Role.DECODE, ready=0, failure=QUOTA)), "pods": ()},
        "QuotaExceeded",
        ["the namespace's quota refuses its pod", "raise the quota"],
        id="10 a quota",
    ),
    pytest.param(
        {
            "body": body(generation=3, observed=2),
            "operator": Operator(seen=True, ready=0, wanted=1, namespaces=("pdx-system",)),
        },
        "OperatorNotRunning",
        ["knows generation 2, and this is 3", "the operator (namespace pdx-system) is not ready"],
        id="11 an operator that does not run",
    ),
    pytest.param(
        {"body": body(observed=None), "operator": Operator()},
        "OperatorBehind",
        ["No operator has ever looked at the object", "watchNamespaces"],
        id="11 an object that no operator sees",
    ),
    pytest.param(
        {"pools": (pool(Role.PREFILL, revision="b"), pool(Role.DECODE, revision="a"))},
        "NoPair",
        ["revision b", "decode engines of a"],
        id="12 P and D of different revisions",
    ),
    pytest.param(
        {"body": body(Progressing=condition("Progressing", "True", "RollingOut", "1 of 2 new pairs"))},
        "RolloutStuck",
        ["for 240 minutes: 1 of 2 new pairs", "maxSurge: 0"],
        id="12 a rollout that does not move",
    ),
    pytest.param(
        {"stalled": ("qwen-decode-b",)}, "RolloutStuck", ["Deployment qwen-decode-b made no progress"], id="12 stalled"
    ),
    pytest.param(
        {"body": body(Ready=NO_GATEWAY)}, "GatewayNotReady", ["No gateway is ready", "No client"], id="13 no gateway"
    ),
    pytest.param(broken_decode(), "DecodeNotReady", ["No decode engine is ready"], id="13 no decode engine"),
    pytest.param(
        {
            "engines": (engine(Role.PREFILL), engine(Role.DECODE, tokens=Tokens(60_000, 0))),
        },
        "KVNotMoving",
        ["90 requests went over a prefill engine", "60000 prompt tokens", "none came from outside"],
        id="14 decode computes everything again",
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
        {"body": body(Degraded=condition("Degraded", "True", "ChildRefused", "the API server refuses the Service"))},
        "ChildRefused",
        ["The operator says: the API server refuses the Service"],
        id="14 what only the operator knows",
    ),
    pytest.param(
        {"gateways": (Gateway("qwen-gateway-1", None, "no answer within 10 s"),)},
        "GatewaySilent",
        ["qwen-gateway-1", "no answer within 10 s"],
        id="14 a gateway that does not answer",
    ),
]


def found(**changes: Any) -> list[Finding]:
    return examine(dataclasses.replace(HEALTHY, **changes), CHECKS)


@pytest.mark.parametrize(("changes", "cause", "words"), SETUPS)
def test_the_cause_is_named(changes: dict[str, Any], cause: str, words: list[str]) -> None:
    findings = found(**changes)
    assert findings, "nothing was found"
    named = next((finding for finding in findings if finding.cause == cause), None)
    assert named is not None, findings
    for word in words:
        assert word in f"{named.sentence} {named.remedy}"
    assert not is_healthy(findings)
    first = findings[0]
    assert first.cause == cause or first.severity is named.severity, "a cause comes before what follows of it"


@pytest.mark.parametrize("picture", [HEALTHY, LOCAL], ids=["cluster", "local"])
def test_a_healthy_deployment_gives_no_finding(picture: Picture) -> None:
    assert examine(picture, CHECKS) == []


def test_a_gateway_that_may_not_be_asked_is_not_wrong() -> None:
    assert found(gateways=(Gateway("qwen-gateway-1", None),)) == []


def test_what_follows_comes_after_its_cause() -> None:
    findings = found(**broken_decode(**IMAGE))
    assert [(f.severity, f.cause) for f in findings] == [
        (Severity.WRONG, "ImagePullFailed"),
        (Severity.FOLLOWS, "DecodeNotReady"),
    ]


def test_each_setup_alone_gives_one_cause() -> None:
    for setup in SETUPS:
        changes, cause, _ = setup.values
        causes = {f.cause for f in found(**changes) if f.severity is Severity.WRONG}
        assert len(causes) <= 2, (setup.id, causes)
        assert causes <= {cause, *_ALSO.get(cause, ())}, (setup.id, causes)


_ALSO = {"GatewayRights": ("NoEndpoints",), "ArgumentsDiffer": ("DtypesDiffer",)}
"""What is told beside a cause, from another side."""


def test_a_change_of_a_moment_ago_is_waited_for() -> None:
    findings = found(body=body(generation=3, observed=2, changed="2026-05-04T11:59:55Z"))
    assert [(f.severity, f.cause) for f in findings] == [(Severity.WAIT, "OperatorBehind")]
    assert not is_healthy(findings)


def test_engines_that_load_are_waited_for() -> None:
    loading = {"state": {"running": {"startedAt": "2026-05-04T11:58:00Z"}}, "started": False, "restartCount": 0}
    findings = found(**broken_decode(**loading))
    assert (findings[0].severity, findings[0].cause) == (Severity.WAIT, "Loading")
    assert all(f.severity is not Severity.WRONG for f in findings)


def test_old_lines_of_a_log_do_not_outweigh_the_canary() -> None:
    verified = condition("KVTransferVerified", "True", "Verified", "4 of 4 pairs")
    since = f"{BLOCKED_LOG}INFO NIXL compatibility check passed (hash: 1)\n"
    assert found(engines=(engine(Role.DECODE, log=since),)) == []
    logged = (engine(Role.DECODE, log=BLOCKED_LOG),)
    assert found(body=body(KVTransferVerified=verified), engines=logged) == []
    seen = dataclasses.replace(
        HEALTHY.gateways[0], canary={"finding": Canaries(Verdict.VERIFIED, pairs=1, possible=1).as_json()}
    )
    assert found(gateways=(seen,), engines=logged) == []


@pytest.mark.parametrize(("reason", "told"), [("NotTriedYet", []), ("GatewayUnreachable", ["GatewayUnreachable"])])
def test_that_nothing_is_known_of_kv_is_at_most_noted(reason: str, told: list[str]) -> None:
    unknown = condition("KVTransferVerified", "Unknown", reason, "no gateway has told of a canary")
    findings = found(body=body(KVTransferVerified=unknown))
    assert [finding.cause for finding in findings] == told
    assert is_healthy(findings)


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


@pytest.mark.parametrize("command", ["doctor", "top"])
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param(["--admin", "http://127.0.0.1:1"], "The gateway cannot be asked", id="nobody there"),
        pytest.param(["--admin", "localhost"], "is no URL; write for example http://", id="no URL"),
        pytest.param(["--local", "-n", "llm"], "leave one out", id="two places"),
        pytest.param(["nope", "--run-dir", "/nonexistent"], "No `pdx up` of the name nope runs", id="no such run"),
        pytest.param(["x", "--kubeconfig", "/nonexistent"], "/nonexistent does not exist", id="no kubeconfig"),
        pytest.param(["x", "--kubeconfig", __file__], "No cluster is configured", id="no kubeconfig at all"),
    ],
)
def test_what_cannot_be_looked_at(
    command: str, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([command, *argv])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert words in err


def test_kubectl_pdx_is_the_same_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["kubectl-pdx"].partition(":")
    monkeypatch.setattr(sys, "argv", ["kubectl-pdx", "doctor", "--help"])
    with pytest.raises(SystemExit) as ended:
        getattr(importlib.import_module(module), name)()
    assert ended.value.code == 0
    assert "usage: kubectl pdx doctor" in capsys.readouterr().out


@pytest.mark.parametrize("module", [checks_cluster, checks_serving])
def test_the_guide_names_every_cause(module: ModuleType) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    operators = (Path(__file__).parents[3] / "docs" / "operator.md").read_text()
    assert module.__file__ is not None
    calls = [node for node in ast.walk(ast.parse(Path(module.__file__).read_text())) if isinstance(node, ast.Call)]
    words = [arg.value for call in calls for arg in call.args[:2] if isinstance(arg, ast.Constant)]
    causes = {word for word in words if isinstance(word, str) and re.fullmatch(r"([A-Z]+[a-z]+){2,}", word)}
    assert len(causes) >= 7
    assert not causes & set(Cause), "what canaries name has its word in one place"
    for cause in causes | set(Cause):
        assert f"`{cause}`" in guide or f"`{cause}`" in operators, cause
