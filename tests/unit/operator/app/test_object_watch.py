"""kopf is started again after a failure, watches readable namespaces only, and lists find what it missed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from pdx_api.kube.client import Cluster, RefusedError
from pdx_api.kube.kinds import Kind
from pdx_operator.app import object_watch
from pdx_operator.app.metrics import Metrics
from pdx_operator.app.object_watch import ObjectWatch
from pdx_operator.app.operator import Operator
from pdx_operator.app.settings import Settings
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.resources import Key


class _Cluster:
    """An API server with PDDeployments by namespace, some of which cannot be read."""

    def __init__(self) -> None:
        self.objects: dict[Key, int] = {}
        self.forbidden: set[str | None] = set()
        self.version = 100

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> dict[str, Any]:
        if namespace in self.forbidden:
            raise RefusedError("forbidden", status=403)
        items = [
            {"metadata": {"namespace": key.namespace, "name": key.name, "uid": "u", "resourceVersion": str(version)}}
            for key, version in self.objects.items()
            if namespace in (None, key.namespace) and kind.plural == "pddeployments"
        ]
        return {"items": items, "metadata": {"resourceVersion": str(self.version)}}

    async def pages(
        self, kind: Kind, namespace: str | None, *, metadata_only: bool = False, **query: str
    ) -> AsyncIterator[dict[str, Any]]:
        yield await self.list(kind, namespace)


def _body(name: str, version: int, namespace: str = "a") -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "uid": name, "resourceVersion": str(version), "generation": 1}
    return {"kind": "PDDeployment", "metadata": metadata, "spec": {}}


class _Setup:
    def __init__(self, *namespaces: str | None) -> None:
        self.cluster = _Cluster()
        self.cache = Cache(lambda key, spec_changed: None)
        self.calls: list[str] = []
        self.watch = ObjectWatch(
            cast("Cluster", self.cluster),
            self.cache,
            namespaces,
            begin=lambda: self.calls.append("begin"),
            end=self._end,
            random=lambda: 0.5,
        )

    async def _end(self) -> None:
        self.calls.append("end")


async def test_a_failed_watch_is_started_again_and_everything_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, stop = _Setup("a", "b"), asyncio.Event()
    setup.cluster.forbidden.add("b")
    runs: list[Any] = []

    async def run_kopf(namespaces: Sequence[str | None], *handlers: Any) -> None:
        runs.append(namespaces)
        if len(runs) < 3:
            raise RuntimeError("Error in the watch-stream")

    monkeypatch.setattr(object_watch, "run_kopf", run_kopf)
    async with asyncio.timeout(20):
        await setup.watch.run(stop)
    assert runs == [("a",)] * 3
    assert setup.calls == ["begin", "end"] * 3
    assert setup.watch.unreadable == {"b"}


async def test_kopf_is_restarted_when_another_namespace_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, stop = _Setup("a", "b"), asyncio.Event()
    setup.cluster.forbidden.add("b")
    runs: list[Any] = []
    monkeypatch.setattr(object_watch, "_UNREADABLE_SECONDS", 0.01)

    async def run_kopf(namespaces: Sequence[str | None], *handlers: Any) -> None:
        runs.append(namespaces)
        setup.cluster.forbidden.clear()
        if len(runs) == 1:
            await handlers[2].wait()

    monkeypatch.setattr(object_watch, "run_kopf", run_kopf)
    async with asyncio.timeout(20):
        await setup.watch.run(stop)
    assert runs == [("a",), ("a", "b")]


async def test_objects_that_are_gone_after_a_gap_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = _Setup(None)
    monkeypatch.setattr(object_watch, "_RELIST_SECONDS", 0.0)
    monkeypatch.setattr(object_watch, "run_kopf", lambda *options: asyncio.sleep(0))
    setup.cluster.objects = {Key("a", "kept"): 2}
    await setup.watch.on_event({"type": None, "object": _body("kept", 2)})
    await setup.watch.on_event({"type": None, "object": _body("ghost", 3)})
    await setup.watch.run(asyncio.Event())
    task = asyncio.create_task(setup.watch.sweep())
    async with asyncio.timeout(10):
        while Key("a", "ghost") in setup.cache:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert Key("a", "kept") in setup.cache
    task.cancel()


async def test_a_watch_that_misses_a_change_twice_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = _Setup(None)
    setup.cluster.objects = {Key("a", "m"): 7}
    await setup.watch.on_event({"type": "ADDED", "object": _body("m", 5)})
    stuck = []
    for _ in range(2):
        await setup.watch._compare(None, periodic=True)
        stuck.append(setup.watch.is_stuck)
    await setup.watch.on_event({"type": "MODIFIED", "object": _body("m", 7)})
    await setup.watch._compare(None, periodic=True)
    assert [*stuck, setup.watch.is_stuck] == [False, True, False]


async def test_a_restored_storage_starts_kopf_again(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, runs = _Setup(None), []
    monkeypatch.setattr(object_watch, "_UNREADABLE_SECONDS", 0.01)

    async def run_kopf(namespaces: Sequence[str | None], *handlers: Any) -> None:
        runs.append(namespaces)
        if len(runs) == 1:
            await setup.watch._compare(None, periodic=True)
            setup.cluster.version = 50
            await setup.watch._compare(None, periodic=True)
            await handlers[2].wait()

    monkeypatch.setattr(object_watch, "run_kopf", run_kopf)
    async with asyncio.timeout(20):
        await setup.watch.run(asyncio.Event())
    assert len(runs) == 2


async def test_an_unreadable_namespace_stops_only_itself() -> None:
    cluster = _Cluster()
    cluster.forbidden.add("b")
    metrics = Metrics(lambda: 0.0)
    operator = Operator(Settings("g", namespaces=("a", "b")), cast("Cluster", cluster), metrics, ("a", "b"))
    informers = [informer for each in operator._informers.values() for informer in each]
    tasks = [asyncio.create_task(informer._list()) for informer in informers]
    await asyncio.gather(*tasks, return_exceptions=True)
    for informer in operator._informers["b"]:
        informer.refused = True
    operator._leads.set()
    operator._crd_check.done.set()
    async with asyncio.timeout(10):
        await operator._ready("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(operator._ready("b"), 0.05)
    assert not operator.is_ready(), "the PDDeployments of a are not read yet"
    await operator._objects._compare("a", periodic=False)
    assert operator.is_ready()
    assert operator.namespace_states() == {"a": True, "b": False}
    assert 'pdx_operator_namespace_synced{namespace="b"} 0.0' in metrics.render().decode()


def test_a_silent_watch_fails_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Operator(Settings("g"), cast("Cluster", _Cluster()), Metrics(lambda: 0.0), (None,))
    assert operator.is_alive()
    operator._informers[None][3].last_active -= 1000
    assert not operator.is_alive()


async def test_large_objects_of_two_namespaces_do_not_wait_for_each_other() -> None:
    operator = Operator(Settings("g"), cast("Cluster", _Cluster()), Metrics(lambda: 0.0), (None,))
    slots = operator._context(Metrics(lambda: 0.0)).large_reconciles
    async with asyncio.timeout(5), slots.slot("a"), slots.slot("b"):
        third = asyncio.create_task(slots._wait("a"))
        await asyncio.sleep(0.01)
        assert not third.done(), "one for each namespace"
        third.cancel()


async def test_a_reconcile_waits_a_while_until_the_watch_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = _Setup(None)
    await setup.watch.caught_up()
    setup.watch._bodies.caught_up.clear()
    waiting = asyncio.create_task(setup.watch.caught_up())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    setup.watch._bodies.caught_up.set()
    await asyncio.wait_for(waiting, 0.5)
    setup.watch._bodies.caught_up.clear()
    monkeypatch.setattr(object_watch, "_BEHIND_SECONDS", 0.01)
    await asyncio.wait_for(setup.watch.caught_up(), 5)
