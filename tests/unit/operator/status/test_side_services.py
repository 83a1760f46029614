"""An unavailable side service shows in `Degraded` while all engines serve; an available one causes no request."""

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import pytest

from pdx_api.kube.client import Cluster
from pdx_api.kube.kinds import Kind
from pdx_api.names import API_VERSION, KIND
from pdx_operator.controller.intervals import Intervals
from pdx_operator.controller.pod_inspector import PodInspector
from pdx_operator.controller.status_writer import Status, StatusWriter
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.resources import ChildKey, Key, Snapshot
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.plan.reconcile_plan import Plan, plan
from pdx_operator.render.gateway import Installation
from pdx_operator.status.conditions import build, transitions
from pdx_operator.status.facts import facts_of

Body = dict[str, Any]

NOW = datetime.fromisoformat("2026-05-04T12:00:00Z")
KEY = Key("ns", "m")
SERVICES = {"LMCache": "lmcache", "LMCacheP2P": "peers", "MooncakeStore": "mooncake"}
CRASHED: Body = {
    "containerStatuses": [
        {
            "name": "service",
            "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "message": "no such device"}},
        }
    ]
}
UNPLACED: Body = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient memory."}
    ]
}
STARTING: Body = {
    "containerStatuses": [
        {"name": "service", "started": False, "state": {"running": {"startedAt": "2026-05-04T11:59:50Z"}}}
    ]
}
QUOTA = (
    'pods "m-lmcache-x" is forbidden: exceeded quota: q, requested: memory=6Gi, used: memory=8Gi, limited: memory=8Gi'
)


def _plan(body: Body, children: dict[ChildKey, Body]) -> Plan:
    return plan(Snapshot(body, children), Installation("gateway:1"))


def _serving(connector: str) -> tuple[Body, dict[ChildKey, Body]]:
    """An object and its children, all pods of which are available."""
    spec = {"model": {"name": "x"}, "prefill": {"replicas": 2}, "decode": {"replicas": 1}}
    metadata = {"name": "m", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"}
    body: Body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
    body["spec"] = {**spec, "kvTransfer": {"connector": connector}}
    children = {apply.key: copy.deepcopy(apply.manifest) for apply in _plan(body, {}).applies}
    for key, child in children.items():
        child["metadata"]["uid"] = key.name
        if key.kind == "Deployment":
            n = child["spec"].setdefault("replicas", 1)
            child["status"] = {"observedGeneration": 1, "replicas": n, "updatedReplicas": n, "availableReplicas": n}
    return body, children


def _service(connector: str, children: dict[ChildKey, Body]) -> Body:
    (found,) = [b for key, b in children.items() if key.kind == "Deployment" and f"-{SERVICES[connector]}-" in key.name]
    return found


@dataclass
class _Api:
    """An API server with pods, which counts requests for them."""

    pods: list[Body] = field(default_factory=list)
    requests: int = 0
    written: list[Status] = field(default_factory=list)

    async def pages(self, kind: Kind, namespace: str, **query: str) -> AsyncIterator[Body]:
        self.requests += 1
        yield {"items": self.pods}

    async def log(self, *args: object, **kwargs: object) -> str:
        return ""

    async def apply_status(self, namespace: str, name: str, *, uid: str, status: Body) -> Body:
        self.written.append(status)
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(len(self.written) + 1)}
        return {"metadata": {**metadata, "generation": 1}, "status": status}


class _Reconciles:
    """The part of a reconcile after the writes."""

    def __init__(self, api: _Api) -> None:
        cluster = cast("Cluster", api)
        self._pod_inspector = PodInspector(cluster, asyncio.Semaphore(1), KEY, Intervals(), lambda: 100.0)
        self._status_writer = StatusWriter(
            cluster, Cache(lambda key, spec_changed: None), KEY, Intervals(), lambda: 100.0
        )

    async def reconcile(self, body: Body, children: dict[ChildKey, Body]) -> tuple[Body, float | None]:
        """The object with its new status, and the seconds until the next inspection."""
        current = _plan(body, children)
        assert not current.has_writes
        inspection, delay = await self._pod_inspector.inspect(current, written=False)
        snapshot = Snapshot(body, children)
        facts = facts_of(snapshot, current, inspection, TransferReport(), NOW)
        status = build(facts, body.get("status") or {}, NOW)
        await self._status_writer.write(snapshot, status)
        return {**body, "status": status}, delay


def _condition(body: Body, kind: str) -> tuple[str, str, str]:
    (found,) = [c for c in body["status"]["conditions"] if c["type"] == kind]
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize(
    ("connector", "status", "failure", "degraded", "message"),
    [
        pytest.param(
            "LMCache",
            CRASHED,
            "",
            ("True", "Crashing"),
            "the lmcache server: it ends with exit code 1, saying: no such device",
            id="crashes",
        ),
        pytest.param(
            "LMCacheP2P",
            CRASHED,
            "",
            ("True", "Crashing"),
            "the lmcache coordinator: it ends with exit code 1, saying: no such device",
            id="coordinator",
        ),
        pytest.param(
            "MooncakeStore",
            UNPLACED,
            "",
            ("True", "Unschedulable"),
            "the mooncake server: no node has enough free memory (0/1 nodes are available: 1 Insufficient memory); "
            "lower memory in spec.kvTransfer.podTemplate",
            id="unschedulable",
        ),
        pytest.param(
            "LMCache",
            None,
            QUOTA,
            ("True", "QuotaExceeded"),
            "the lmcache server: the namespace's quota refuses its pod (exceeded quota: q",
            id="quota",
        ),
        pytest.param("LMCache", STARTING, "", ("False", "NothingFound"), "nothing is wrong", id="starts"),
    ],
)
async def test_an_unavailable_side_service_degrades_a_serving_object(
    connector: str, status: Body | None, failure: str, degraded: tuple[str, str], message: str
) -> None:
    body, children = _serving(connector)
    api = _Api()
    max_concurrent_reconciles = _Reconciles(api)
    before, _ = await max_concurrent_reconciles.reconcile(body, children)
    assert _condition(before, "Degraded")[:2] == ("False", "NothingFound")
    deployment = _service(connector, children)
    whole = deployment["status"]
    deployment["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    if failure:
        deployment["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": failure}]
    if status is not None:
        pod = {"name": "s", "labels": deployment["spec"]["template"]["metadata"]["labels"]}
        api.pods = [{"metadata": pod, "spec": {"nodeName": "n1"}, "status": status}]
    after, delay = await max_concurrent_reconciles.reconcile(before, children)
    assert _condition(after, "Degraded")[:2] == degraded
    assert _condition(after, "Degraded")[2].startswith(message)
    assert delay, "pods are inspected again while it is unavailable"
    assert _condition(after, "Ready") == _condition(before, "Ready")
    assert _condition(after, "Ready")[0] == "True"
    assert [change.reason for change in transitions(before["status"], after["status"])] == (
        [degraded[1]] if degraded[0] == "True" else []
    )
    deployment["status"] = whole
    repaired, delay = await max_concurrent_reconciles.reconcile(after, children)
    assert (repaired["status"], delay) == (before["status"], None)


@pytest.mark.parametrize("connector", SERVICES)
async def test_an_available_side_service_causes_no_request(connector: str) -> None:
    body, children = _serving(connector)
    api = _Api()
    max_concurrent_reconciles = _Reconciles(api)
    settled, _ = await max_concurrent_reconciles.reconcile(body, children)
    for _ in range(3):
        settled, delay = await max_concurrent_reconciles.reconcile(settled, children)
        assert delay is None
    assert (api.requests, len(api.written)) == (0, 1)
