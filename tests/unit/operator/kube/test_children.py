"""Odd children do not stop an informer, and what a list lacks leaves the cache."""

import asyncio
import json
import time
from typing import Any

import pytest

from pdx_api.kube.informer import Informer
from pdx_api.kube.kinds import KIND_OF
from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.children import Children
from tests.unit.api.kube.scripted_api_server import Script, event

SERVICE = KIND_OF["Service"]


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


async def _run(script: Script) -> Cache:
    cache = Cache(lambda key, spec_changed: None)
    children = Children(cache, SERVICE, None)
    informer = Informer(script.cluster, children, SERVICE, None, LABEL_DEPLOYMENT, lambda: 0.5, time.monotonic)
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(0.2)
    assert not task.done()
    task.cancel()
    return cache


def _names(cache: Cache) -> set[str]:
    return {child.name for _, child in cache._owners}


async def test_odd_children_of_a_list_do_not_stop_the_informer() -> None:
    assert "good" in _names(await _run(Script(items=[*ODD_SERVICES, _service("good")])))


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
async def test_odd_children_of_a_watch_do_not_stop_the_informer(kind: str) -> None:
    odd = [event(kind, body) for body in ODD_SERVICES]
    deep = b'{"type": "ADDED", "object": {"metadata": {"name": %s}}}' % (b"[" * 2000 + b"]" * 2000)
    assert "good" in _names(await _run(Script([*odd, deep, event("ADDED", _service("good"))])))


def test_what_a_list_lacks_leaves_the_cache() -> None:
    cache = Cache(lambda key, spec_changed: None)
    children = Children(cache, SERVICE, None)
    for names in (("a", "b"), ("b",)):
        children.begin()
        for name in names:
            children.put(_service(name))
        children.end()
    assert _names(cache) == {"b"}
    children.put(_service("c", resourceVersion="9"))
    children.begin()
    children.put(_service("b"))
    assert _names(cache) == {"b", "c"}, "the list may fail"
    children.delete(_service("b"))
    assert _names(cache) == {"c"}
