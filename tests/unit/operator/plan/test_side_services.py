"""A side service that is away while all engines serve is told of in `Degraded`; while all is well nothing is asked."""

import asyncio
import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import pytest

from pdx_api.names import API_VERSION, KIND
from pdx_operator.app.settings import Intervals
from pdx_operator.controller.pod_inspector import PodInspector
from pdx_operator.controller.status_writer import Reporter, Status, status_of
from pdx_operator.controller.write_backoff import Sifted
from pdx_operator.kube.cache import ChildKey, Key, Snapshot, Store
from pdx_operator.kube.client import Cluster
from pdx_operator.kube.resources import Kind
from pdx_operator.observed.workloads import Heard
from pdx_operator.plan.reconcile_plan import Decision, decide
from pdx_operator.status.conditions import transitions

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


def _decision(body: Body, children: dict[ChildKey, Body]) -> Decision:
    return decide(Snapshot(body, children), gateway_image="gateway:1")


def _serving(connector: str) -> tuple[Body, dict[ChildKey, Body]]:
    """An object and its children, all pods of which are available."""
    spec = {"model": {"name": "x"}, "prefill": {"replicas": 2}, "decode": {"replicas": 1}}
    metadata = {"name": "m", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"}
    body: Body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
    body["spec"] = {**spec, "kvTransfer": {"connector": connector}}
    children = {change.key: copy.deepcopy(change.manifest) for change in _decision(body, {}).changes}
    for key, child in children.items():
        child["metadata"]["uid"] = key.name
        if key.kind == "Deployment":
            n = child["spec"]["replicas"]
            child["status"] = {"observedGeneration": 1, "replicas": n, "updatedReplicas": n, "availableReplicas": n}
    return body, children


def _service(connector: str, children: dict[ChildKey, Body]) -> Body:
    (found,) = [b for key, b in children.items() if key.kind == "Deployment" and f"-{SERVICES[connector]}-" in key.name]
    return found


@dataclass
class _Api:
    """Knows the pods, and counts what is asked of it."""

    pods: list[Body] = field(default_factory=list)
    asked: int = 0
    written: list[Status] = field(default_factory=list)

    async def list(self, kind: Kind, namespace: str, **query: str) -> Body:
        self.asked += 1
        return {"items": self.pods}

    async def log(self, *args: object, **kwargs: object) -> str:
        return ""

    async def report(self, namespace: str, name: str, *, uid: str, status: Body) -> Body:
        self.written.append(status)
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(len(self.written) + 1)}
        return {"metadata": {**metadata, "generation": 1}, "status": status}


class _Turns:
    """What the loop does with an object once its children are written."""

    def __init__(self, api: _Api) -> None:
        cluster = cast("Cluster", api)
        self._pod_inspector = PodInspector(cluster, asyncio.Semaphore(1), KEY, Intervals(), lambda: 100.0)
        self._reporter = Reporter(cluster, Store(lambda key, urgent: None), KEY, Intervals(), lambda: 100.0)

    async def turn(self, body: Body, children: dict[ChildKey, Body]) -> tuple[Body, float | None]:
        """The object with its new status, and the seconds until pods should be looked at again."""
        decision = _decision(body, children)
        assert not decision.writes
        look, again = await self._pod_inspector.look(decision, written=False)
        snapshot = Snapshot(body, children)
        status = status_of(snapshot, Sifted(decision), look, Heard(), NOW)
        await self._reporter.write(snapshot, status)
        return {**body, "status": status}, again


def _said(body: Body, kind: str) -> tuple[str, str, str]:
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
            "the mooncake server: no node has a free memory",
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
        pytest.param("LMCache", STARTING, "", ("False", "Loading"), "the lmcache server: it is starting", id="starts"),
    ],
)
async def test_a_side_service_that_is_away_degrades_an_object_that_serves(
    connector: str, status: Body | None, failure: str, degraded: tuple[str, str], message: str
) -> None:
    body, children = _serving(connector)
    api = _Api()
    turns = _Turns(api)
    before, _ = await turns.turn(body, children)
    assert _said(before, "Degraded")[:2] == ("False", "NothingFound")
    deployment = _service(connector, children)
    whole = deployment["status"]
    deployment["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    if failure:
        deployment["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": failure}]
    if status is not None:
        pod = {"name": "s", "labels": deployment["spec"]["template"]["metadata"]["labels"]}
        api.pods = [{"metadata": pod, "spec": {"nodeName": "n1"}, "status": status}]
    after, again = await turns.turn(before, children)
    assert _said(after, "Degraded")[:2] == degraded
    assert _said(after, "Degraded")[2].startswith(message)
    assert again, "pods are looked at again while it is away"
    assert _said(after, "Ready") == _said(before, "Ready")
    assert _said(after, "Ready")[0] == "True"
    assert [told.reason for told in transitions(before["status"], after["status"])] == (
        [degraded[1]] if degraded[0] == "True" else []
    )
    deployment["status"] = whole
    mended, again = await turns.turn(after, children)
    assert (mended["status"], again) == (before["status"], None)


@pytest.mark.parametrize("connector", SERVICES)
async def test_an_object_whose_side_service_is_available_is_neither_looked_at_nor_written(connector: str) -> None:
    body, children = _serving(connector)
    api = _Api()
    turns = _Turns(api)
    settled, _ = await turns.turn(body, children)
    for _ in range(3):
        settled, again = await turns.turn(settled, children)
        assert again is None
    assert (api.asked, len(api.written)) == (0, 1)
