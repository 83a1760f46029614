"""What a reconcile writes when another operator holds the object, when nobody does, and when the CRD is too old."""

import asyncio
import copy
import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pdx_api.kube.client import Cluster, ConflictError
from pdx_api.kube.kinds import Kind
from pdx_api.names import API_VERSION, KIND
from pdx_operator.controller import reconciler
from pdx_operator.controller.claims import Claims
from pdx_operator.controller.crd_check import CRDCheck
from pdx_operator.controller.credit import Credit
from pdx_operator.controller.fair_slots import FairSlots
from pdx_operator.controller.gateway_upgrades import GatewayUpgrades
from pdx_operator.controller.intervals import Intervals
from pdx_operator.controller.reconciler import Context, Reconciler
from pdx_operator.controller.transfer_poller import TransferPoller
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.event_recorder import EventRecorder
from pdx_operator.kube.resources import Key
from pdx_operator.plan import reconcile_plan
from pdx_operator.render.gateway import Installation
from pdx_operator.render.rbac import RoleKind
from tests.component.harness import eventually

KEY = Key("ns", "m")
MINE, OTHER = "pdx-system/pdx", "team/pdx"


class _Server:
    """An API server with one PDDeployment, which stores what is applied."""

    def __init__(self, status: dict[str, Any] | None = None, annotations: dict[str, str] | None = None) -> None:
        metadata = {"namespace": "ns", "name": "m", "uid": "u", "generation": 1, "resourceVersion": "1"}
        spec = {"model": {"name": "x"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
        self.body: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {**metadata, "annotations": annotations or {}},
            "spec": spec,
            "status": status or {},
        }
        self.writes: list[str] = []
        self.version = 1

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        assert kind.name == KIND
        return copy.deepcopy(self.body)

    async def apply_status(
        self, namespace: str, name: str, *, uid: str, status: dict[str, Any], version: str = ""
    ) -> dict[str, Any]:
        if version and version != self.body["metadata"]["resourceVersion"]:
            raise ConflictError("changed", status=409)
        self.writes.append("status")
        self.body["status"] = status
        return copy.deepcopy(self._stored(self.body))

    async def apply(self, kind: Kind, manifest: dict[str, Any], *, uid: str | None, **_: Any) -> dict[str, Any]:
        self.writes.append(kind.name)
        body = json.loads(json.dumps(manifest))
        return self._stored({**body, "metadata": {**body["metadata"], "uid": "c"}})

    async def pages(self, *_: Any, **__: Any) -> Any:
        yield {"items": []}

    def _stored(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        return body


class _Setup:
    def __init__(self, server: _Server, missing: tuple[str, ...] = ()) -> None:
        self.server = server
        cluster = cast("Cluster", server)
        self.cache = Cache(lambda key, spec_changed: None)
        self.cache.upsert_object(copy.deepcopy(server.body))
        self.conflicts = 0
        check = CRDCheck(cast("Any", None), lambda: None)
        check.missing = missing
        context = Context(
            cluster=cluster,
            cache=self.cache,
            recorder=cast("EventRecorder", SimpleNamespace(record=lambda *_: None)),
            transfer_poller=TransferPoller(cluster, lambda key: None, lambda: 0.5),
            count_reconcile=lambda result, seconds: None,
            installation=Installation("gateway:1", gateway_role=RoleKind.CLUSTER_ROLE),
            claims=Claims(cluster, MINE, lambda: 0.0, self._count),
            gateway_upgrades=GatewayUpgrades(1, lambda: 0.0, lambda key: None),
            crd_check=check,
            intervals=Intervals(),
            reconciles=FairSlots(1, Credit(lambda: 0.0, 1.0), lambda: 0.0),
            large_reconciles=FairSlots(1, Credit(lambda: 0.0, 1.0), lambda: 0.0),
            pod_lists=asyncio.Semaphore(1),
            ready=cast("Any", None),
            caught_up=lambda: asyncio.sleep(0),
            now=lambda: datetime.now(UTC),
            clock=lambda: 0.0,
            random=lambda: 0.5,
        )
        self.reconciler = Reconciler(KEY, context)

    def _count(self) -> None:
        self.conflicts += 1


async def test_an_object_is_claimed_before_anything_else_is_written() -> None:
    setup = _Setup(_Server())
    assert await setup.reconciler.reconcile() == 0.0
    assert (setup.server.writes, setup.server.body["status"]) == (["status"], {"operator": MINE})
    await setup.reconciler.reconcile()
    assert setup.server.writes.count("Deployment") == 3
    assert setup.server.body["status"]["operator"] == MINE, "the claim stays in the status"
    assert setup.server.body["status"]["observedGeneration"] == 1


@pytest.mark.parametrize("size", [2**20, 2**18, 2**17, 2**15])
async def test_large_objects_are_reconciled_one_by_one(size: int) -> None:
    """Those that are kept, too: each plan of one takes the loop for a while."""
    server = _Server()
    server.body["spec"]["noise"] = "x" * size
    setup = _Setup(server)
    context = replace(setup.reconciler._context, ready=lambda namespace: asyncio.sleep(0))
    async with context.large_reconciles.slot("ns"):
        task = asyncio.create_task(Reconciler(KEY, context).run())
        await asyncio.sleep(0.05)
        assert server.writes == []
    async with context.reconciles.slot("ns"):  # an ordinary one takes no part of theirs
        await eventually(lambda: server.writes)
    task.cancel()
    await asyncio.wait([task])


async def test_a_large_object_rests_and_is_planned_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the API server and the loop would be busy with one tenant's objects only."""
    server, threads, times = _Server(), set[str](), iter(range(100))
    server.body["spec"]["noise"] = "x" * 2**17
    server.body["status"] = {"operator": MINE}
    setup = _Setup(server)
    compute = reconcile_plan.plan

    def plan(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        return compute(*arguments)

    monkeypatch.setattr(reconciler, "plan", plan)
    monkeypatch.setattr(reconciler, "REST", 1e6)
    context = replace(
        setup.reconciler._context, ready=lambda namespace: asyncio.sleep(0), clock=lambda: float(next(times))
    )
    task = asyncio.create_task(Reconciler(KEY, context).run())
    await eventually(lambda: server.writes)
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(_hold(context.large_reconciles))
    await asyncio.sleep(0.05)
    assert not waiting.done(), "the slot is still taken"
    assert threading.main_thread().name not in threads
    for each in (task, waiting):
        each.cancel()
    await asyncio.wait([task, waiting])


async def test_events_during_the_wait_for_a_slot_cause_one_reconcile() -> None:
    setup, seen = _Setup(_Server({"operator": OTHER})), list[int]()
    context = replace(setup.reconciler._context, ready=lambda namespace: asyncio.sleep(0), intervals=Intervals(0.01))
    waiting = Reconciler(KEY, context)

    async def count() -> None:
        seen.append(1)

    waiting.reconcile = count  # type: ignore[method-assign]
    async with context.reconciles.slot("other"):
        task = asyncio.create_task(waiting.run())
        for spec_changed in (False, True, False):
            await asyncio.sleep(0.01)
            waiting.enqueue(spec_changed=spec_changed)
        assert not seen
    await asyncio.sleep(0.1)
    assert len(seen) == 1
    waiting.enqueue(spec_changed=False)
    await asyncio.sleep(0.1)
    assert len(seen) == 2
    task.cancel()
    await asyncio.wait([task])


async def _hold(slots: FairSlots) -> None:
    async with slots.slot("other"):
        pass


async def test_of_two_claims_one_wins() -> None:
    server = _Server()
    first, second = _Setup(server), _Setup(server)
    second.cache.upsert_object(copy.deepcopy(server.body))
    await first.reconciler.reconcile()
    server.body["status"] = {"operator": OTHER}
    assert await second.reconciler.reconcile() == 0.0
    assert server.body["status"] == {"operator": OTHER}, "its version was stale"
    assert server.writes == ["status"]


@pytest.mark.parametrize(
    ("status", "annotations"),
    [({"operator": OTHER}, {}), ({"operator": MINE}, {"pdx.dev/operator": OTHER})],
    ids=["status", "annotation"],
)
async def test_an_object_of_another_operator_is_not_written(
    status: dict[str, Any], annotations: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = _Setup(_Server(status, annotations))
    monkeypatch.setattr(Claims, "_renewal", lambda self, holder: asyncio.sleep(0, "x"))
    for _ in range(3):
        assert await setup.reconciler.reconcile() == 30.0
    assert (setup.server.writes, setup.conflicts) == ([], 1)


async def test_a_notice_is_written_once_and_its_owner_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = _Setup(_Server({"operator": OTHER, "conditions": [{"type": "Ready", "status": "True", "reason": "x"}]}))
    monkeypatch.setattr(Claims, "_renewal", lambda self, holder: asyncio.sleep(0, None))
    for _ in range(3):
        assert await setup.reconciler.reconcile() == 30.0
    assert setup.server.writes == ["status"]
    status = setup.server.body["status"]
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("Ready", "True"),
        ("Managed", "Unknown"),
    ]
    assert status["operator"] == OTHER
    owner = _Setup(_Server({**status, "operator": MINE}))
    await owner.reconciler.reconcile()
    assert "Managed" not in {each["type"] for each in owner.server.body["status"]["conditions"]}


async def test_an_operator_that_loses_an_object_meanwhile_writes_nothing() -> None:
    setup = _Setup(_Server({"operator": MINE}))
    setup.server.body["status"] = {"operator": OTHER}
    setup.server.body["metadata"]["resourceVersion"] = "2"
    assert await setup.reconciler.reconcile() == 0.0
    assert setup.server.writes == []


async def test_with_a_crd_that_is_too_old_only_one_condition_is_written() -> None:
    setup = _Setup(_Server(), (".status.operator",))
    for _ in range(2):
        assert await setup.reconciler.reconcile() is None
    assert setup.server.writes == ["status"]
    (condition,) = setup.server.body["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("Degraded", "CRDTooOld")
    assert "operator" not in setup.server.body["status"], "the CRD does not have the field"
