"""An informer continues its watch or lists again, with a pause after each failure."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.client import Cluster, MissingError, RefusedError
from pdx_operator.kube.informer import Informer
from pdx_operator.kube.resources import KIND_OF, Kind

SERVICE = KIND_OF["Service"]


class _Cluster:
    """An API server whose watches deliver equal events, and end."""

    def __init__(self, *events: dict[str, Any] | bytes, items: list[dict[str, Any]] | None = None) -> None:
        self.events = events
        self.items = items or []
        self.lists = 0
        self.present = "7"
        """The version of the API server."""
        self.later = ""
        """Its version after the first list."""
        self.versions: list[str] = []

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> dict[str, Any]:
        return {"items": [], "metadata": {"resourceVersion": self.later or self.present}}

    async def pages(self, kind: Kind, namespace: str | None, **query: str) -> AsyncIterator[dict[str, Any]]:
        self.lists += 1
        yield {"items": self.items, "metadata": {"resourceVersion": self.present}}

    @asynccontextmanager
    async def watch(self, kind: Kind, namespace: str | None, **query: str) -> AsyncIterator[AsyncIterator[bytes]]:
        self.versions.append(query["resourceVersion"])

        async def lines() -> AsyncIterator[bytes]:
            for event in self.events:
                yield event if isinstance(event, bytes) else json.dumps(event).encode()

        yield lines()


def _error(code: int) -> dict[str, Any]:
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "words"}}


async def _run(cluster: _Cluster, seconds: float) -> Cache:
    cache = Cache(lambda key, spec_changed: None)
    informer = Informer(cast("Cluster", cluster), cache, SERVICE, None, lambda: 0.5, time.monotonic)
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()
    return cache


def _service(name: Any, **metadata: Any) -> dict[str, Any]:
    labels = {LABEL_DEPLOYMENT: "m"}
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": "u", "resourceVersion": "8", "labels": labels, **metadata}
    }


ODD_SERVICES: tuple[dict[str, Any], ...] = (
    {"metadata": []},
    {},
    _service(None),
    _service(["a"]),
    _service("version", resourceVersion=None),
    _service("uid", uid={}),
    _service("labels", labels=["a"]),
    _service("owners", ownerReferences=7),
    {**_service("deep"), "spec": json.loads("[" * 500 + "]" * 500)},
    _service("annotated", annotations={"a": "<" * 2**20}),
)


async def test_odd_children_of_a_list_do_not_stop_the_informer() -> None:
    cache = await _run(_Cluster(items=[*ODD_SERVICES, _service("good")]), 0.2)
    assert "good" in {child.name for _, child in cache._owners}


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
async def test_odd_children_of_a_watch_do_not_stop_the_informer(kind: str) -> None:
    odd = [{"type": kind, "object": body} for body in ODD_SERVICES]
    deep = b'{"type": "ADDED", "object": {"metadata": {"name": %s}}}' % (b"[" * 2000 + b"]" * 2000)
    cache = await _run(_Cluster(*odd, deep, {"type": "ADDED", "object": _service("good")}), 0.2)
    assert "good" in {child.name for _, child in cache._owners}


@pytest.mark.parametrize("line", [b"<html>", b"[]", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": 7}'])
async def test_after_a_line_without_an_event_everything_is_listed_again(line: bytes) -> None:
    cluster = _Cluster(line)
    await _run(cluster, 0.4)
    assert cluster.lists == 2


@pytest.mark.parametrize(("code", "lists"), [(410, 2), (429, 1), (500, 1)])
async def test_an_error_event_is_retried(code: int, lists: int) -> None:
    cluster = _Cluster(_error(code))
    await _run(cluster, 0.4)
    # 0.2 s later, and then 0.4 s later.
    assert (cluster.lists, cluster.versions) == (lists, ["7", "7"])


async def test_a_watch_continues_from_the_last_version() -> None:
    cluster = _Cluster({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}, _error(500))
    cluster.later = "9"
    await _run(cluster, 0.5)
    assert cluster.lists == 1
    # An event in between resets the delay.
    assert cluster.versions == ["7", "9", "9"]


async def test_a_short_watch_is_reopened_with_a_delay() -> None:
    cluster = _Cluster()
    await _run(cluster, 0.4)
    assert cluster.versions == ["7", "7"]


async def test_everything_is_listed_again_after_a_restore() -> None:
    cluster = _Cluster({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}, _error(500))
    cluster.present = "8"
    await _run(cluster, 0.5)
    # The API server's present version 8 is older than 9: its storage has been restored from a backup.
    assert cluster.lists >= 2
    assert set(cluster.versions) == {"8"}


class _Refusing(_Cluster):
    async def pages(self, kind: Kind, namespace: str | None, **query: str) -> AsyncIterator[dict[str, Any]]:
        raise RefusedError("forbidden", status=403)
        yield {}


async def test_an_answer_is_activity_also_if_it_is_a_refusal() -> None:
    now = [0.0]
    cache = Cache(lambda key, spec_changed: None)
    informer = Informer(cast("Cluster", _Refusing()), cache, SERVICE, "ns", lambda: 0.5, lambda: now[0])
    now[0] = 50.0
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(10):
        while not informer.refused:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert informer.last_active == 50.0
    assert not informer.synced.is_set()
    task.cancel()


class _Absent(_Cluster):
    async def pages(self, kind: Kind, namespace: str | None, **query: str) -> AsyncIterator[dict[str, Any]]:
        raise MissingError("HTTP 404", status=404)
        yield {}


@pytest.mark.parametrize("cluster", [_Absent(), _Refusing()])
async def test_a_kind_that_a_cluster_may_lack_delays_nothing(
    cluster: _Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(lambda key, spec_changed: None)
    route = KIND_OF["HTTPRoute"]
    informer = Informer(cast("Cluster", cluster), cache, route, None, lambda: 1.0, time.monotonic, optional=True)
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(10):
        await informer.synced.wait()
    assert not informer.refused
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    task.cancel()
