"""One object that cannot be read or planned stops no other object, and a signal ends the operator in every state."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import API_VERSION, KIND
from tests.component.process.stub_api_server import StubAPIServer

_POOL = {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": "1"}}}


def _object(namespace: str, *, decode: str = "{}", metadata: str = "", status: str = "{}", model: str = "m/m") -> bytes:
    """A PDDeployment as text; `decode` and the others are texts of JSON, because Python cannot write all of them."""
    spec = {"model": {"name": model}, "engine": {"image": "e"}, "prefill": _POOL}
    text = (
        f'{{"apiVersion": "{API_VERSION}", "kind": "{KIND}", "metadata": {{"namespace": "{namespace}", "name": "chat", '
        f'"uid": "{namespace}", "resourceVersion": "50", "generation": 1{metadata}}}, '
        f'"spec": {json.dumps(spec)[:-1]}, "decode": {{**}}}}, "status": {status}}}'
    )
    pool = json.dumps(_POOL)[:-1] + f', "podTemplate": {{"spec": {decode}}}}}'
    return text.replace("{**}", pool).encode()


def _nested(levels: int, opening: str, closing: str) -> str:
    return '{"x": ' + opening * levels + closing * levels + "}"


def _entries(count: int) -> str:
    env = [{"name": f"V{number}", "value": "x" * 40} for number in range(count)]
    return json.dumps({"containers": [{"name": "engine", "env": env}]})


LISTS = _object("aaa-lists", decode=_nested(1500, "[", "]"))
UNUSABLE = {
    "aaa-lists": LISTS,
    "mappings": _object("mappings", decode=_nested(3000, '{"a": ', "}").replace("}", "1}", 1)),
    "levels-of-a-hundred": _object("levels-of-a-hundred", decode=_nested(100, "[", "]")),
    "labels": _object("labels", metadata=', "labels": ["a"]'),
    "finalizers": _object("finalizers", metadata=', "finalizers": 7'),
    "entries": _object("entries", decode=_entries(10_000)),
    "containers": _object("containers", decode='{"containers": [7], "volumes": "x", "initContainers": {"a": [null]}}'),
}
"""Objects that get a condition, by namespace."""
NAMELESS = (
    b'{"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": []}',
    b'{"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": {"a": 1}, "namespace": null}}',
    _object("digits", decode='{"x": %s}' % ("9" * 5000), metadata=', "ownerReferences": null'),
    _object("status", status='["a"]'),
    _object("long", metadata=', "labels": {"%s": "b"}' % ("n" * 100_000)),
)
"""Objects that must only do no harm."""


@asynccontextmanager
async def _operator(kubeconfig: Path, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    command = (sys.executable, "-m", "pdx_operator", "--health-port", "0", "--gateway-image", "g:1")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _until(is_done: Callable[[], Any], process: asyncio.subprocess.Process, seconds: float = 25) -> None:
    async with asyncio.timeout(seconds):
        while not is_done():
            assert process.returncode is None
            await asyncio.sleep(0.05)


async def _end(process: asyncio.subprocess.Process) -> int:
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        return await process.wait()


@pytest.mark.parametrize("last", [False, True], ids=["bad objects first", "bad objects last"])
async def test_objects_that_cannot_be_used_do_not_stop_others(tmp_path: Path, *, last: bool) -> None:
    good, bad = _object("good"), [*UNUSABLE.values(), *NAMELESS]
    objects = [good, *bad] if last else [*bad, good]
    async with (
        StubAPIServer.started(*objects, kubeconfig=tmp_path / "config") as stub,
        _operator(tmp_path / "config", tmp_path / "log") as process,
    ):
        await _until(lambda: len(stub.children_of("good")) >= 8, process)
        await _until(lambda: {stub.reason_of(namespace) for namespace in UNUSABLE} == {"InvalidSpec"}, process)
        await _until(lambda: stub.reason_of("good"), process)
        assert stub.reason_of("good") != "InvalidSpec"
        assert await _end(process) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


async def test_a_watch_goes_on_after_objects_that_cannot_be_used(tmp_path: Path) -> None:
    async with (
        StubAPIServer.started(kubeconfig=tmp_path / "config") as stub,
        _operator(tmp_path / "config", tmp_path / "log") as process,
    ):
        await _until(lambda: stub.watches, process)
        for body in (*UNUSABLE.values(), *NAMELESS, _object("good")):
            stub.objects.append(body)
            await stub.events.put(b'{"type": "ADDED", "object": %s}' % body)
        await _until(lambda: len(stub.children_of("good")) >= 8, process)
        await _until(lambda: stub.reason_of("aaa-lists") == "InvalidSpec", process)
        assert stub.watches == 1, "kopf has not failed"
        assert await _end(process) == 0


async def test_a_signal_ends_the_operator_while_its_watch_fails_again_and_again(tmp_path: Path) -> None:
    async with StubAPIServer.started(_object("good"), kubeconfig=tmp_path / "config") as stub:
        stub.fails_watches = True
        async with _operator(tmp_path / "config", tmp_path / "log") as process:
            await _until(lambda: stub.watches >= 3, process)
            assert await _end(process) == 0
