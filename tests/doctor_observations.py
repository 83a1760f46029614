"""Observations of a deployment for tests of `pdx doctor`: a healthy one, and ways to change it."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pdx_api.connectors.base import Site
from pdx_api.names import API_VERSION, KIND, LABEL_REVISION, LABEL_ROLE, LABEL_SERVICE, Mode, Role
from pdx_api.render.engines import engine_command
from pdx_api.spec.parse import parse
from pdx_api.vllm_metrics import PromptTokens
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, Severity, examine, is_healthy
from pdx_cli.sources.observation import Engine, Gateway, Observation, Operator, Rights, SecretReference
from pdx_operator.observed.workloads import ObservedGateway, ObservedPool, PodView, pod_view

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
    all_conditions = {
        "Ready": condition("Ready", "True", "Serving"),
        "Progressing": condition("Progressing", "False", "Complete"),
        "Degraded": condition("Degraded", "False", "NothingFound"),
        **conditions,
    }
    metadata = {"name": "qwen", "generation": generation, "managedFields": [{"time": changed}]}
    status = {"observedGeneration": observed, "conditions": list(all_conditions.values())} if observed else {}
    return {**BODY, "metadata": metadata, "status": status}


def args(role: Role, **changes: str) -> tuple[str, ...]:
    site = Site(host="$(POD_IP)", ports={"side-channel": 5600})
    return engine_command(DEPLOYMENT.spec, role, site=site, listen="0.0.0.0", port=8000).args


def engine(role: Role, **more: Any) -> Engine:
    defaults = {
        "revision": "a",
        "args": args(role),
        "rendered": args(role),
        "version": "0.32.0",
        "model": "Qwen/Qwen3-8B",
        "tokens": PromptTokens(60_000, *((50_000, 10_000) if role is Role.DECODE else (0, 60_000))),
    }
    return Engine(f"qwen-{role}-a-1", role, **{**defaults, **more})


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
    label = LABEL_ROLE if role in (*Role, "gateway") else LABEL_SERVICE
    return pod_view(
        {
            "metadata": {"name": f"qwen-{role}-a-1", "labels": {label: role, **revision}},
            "spec": {} if unschedulable else {"nodeName": "n"},
            "status": {"conditions": conditions, "containerStatuses": [status] if container else []},
        }
    )


def pool(role: Role, ready: int = 1, revision: str = "a", **more: Any) -> ObservedPool:
    return ObservedPool(f"qwen-{role}-{revision}", role, revision, 1, ready, True, **more)


HEALTHY = Observation(
    name="qwen",
    now=NOW,
    namespace="llm",
    mode=Mode.DISAGGREGATED,
    body=body(),
    deployment=DEPLOYMENT,
    operator=Operator(seen=True, ready=1, replicas=1, namespaces=("pdx-system",)),
    pools=(pool(Role.PREFILL), pool(Role.DECODE)),
    gateway=ObservedGateway(1, 1, True),
    pods=(pod("prefill"), pod("decode"), pod("gateway")),
    secrets=(SecretReference("clients", "keys", "spec.gateway.auth.secretRef", True),),
    rights=Rights(lists=True),
    gateways=(gateway(endpoint(Role.PREFILL), endpoint(Role.DECODE)),),
    engines=(engine(Role.PREFILL), engine(Role.DECODE)),
)
LOCAL = Observation(
    name="tiny",
    now=NOW,
    mode=Mode.DISAGGREGATED,
    gateways=HEALTHY.gateways,
    engines=tuple(dataclasses.replace(e, rendered=None) for e in HEALTHY.engines),
)
NO_DECODE = condition("Ready", "False", "DecodeNotReady", "no decode engine is ready")
NO_GATEWAY = condition("Ready", "False", "GatewayNotReady", "no gateway is ready")
CRASH: dict[str, Any] = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}


def broken_decode(**container: Any) -> dict[str, Any]:
    """Changes of the healthy observation: its D does not start."""
    return {
        "pools": (pool(Role.PREFILL), pool(Role.DECODE, ready=0)),
        "pods": (pod("prefill"), pod("decode", False, **container), pod("gateway", False)),
        "engines": (engine(Role.PREFILL),),
        "gateways": (gateway(endpoint(Role.PREFILL, "Warming", "waits for a warm decode engine of its revision")),),
        "body": body(Ready=NO_DECODE),
    }


def without_kv(role: Role) -> tuple[str, ...]:
    given = args(role)
    index = given.index("--kv-transfer-config")
    return given[:index] + given[index + 2 :]


def found(**changes: Any) -> list[Finding]:
    """The findings of the healthy observation with these changes."""
    return examine(dataclasses.replace(HEALTHY, **changes), CHECKS)


def assert_found(changes: dict[str, Any], cause: str, parts: list[str]) -> None:
    """The cause is found with these parts of its text, before its consequences, and no unrelated cause is found."""
    findings = found(**changes)
    assert findings, "nothing was found"
    match = next((finding for finding in findings if finding.cause == cause), None)
    assert match is not None, findings
    for part in parts:
        assert part in f"{match.sentence} {match.remedy}"
    assert not is_healthy(findings)
    first = next(finding for finding in findings if finding.severity is not Severity.IMPACT)
    assert first.cause == cause or first.severity is match.severity, "a cause comes before its consequences"
    causes = {each.cause for each in findings if each.severity is Severity.WRONG}
    assert causes <= {cause, *_RELATED.get(cause, ())}, causes


_RELATED = {"GatewayRights": ("NoEndpoints",), "ArgumentsDiffer": ("DtypesDiffer",)}
"""Cause -> causes that another check finds for the same problem."""
