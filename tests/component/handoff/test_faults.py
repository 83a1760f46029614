"""An engine fails and there is no other; refusals keep the engine's text. See docs/failures.md."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Deadlines
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Shape, World

D_FAULTS: dict[str, tuple[FaultKind, dict[str, Any]]] = {
    "500": (FaultKind.STATUS, {"status": 500}),
    "503": (FaultKind.STATUS, {"status": 503}),
    "dies-before-head": (FaultKind.DIE_BEFORE_HEAD, {}),
    "dies-after-head": (FaultKind.DIE_AFTER_HEAD, {}),
    "error-event": (FaultKind.ERROR_EVENT, {}),
    "hangs-before-head": (FaultKind.HANG_BEFORE_HEAD, {}),
    "hangs-after-head": (FaultKind.HANG_AFTER_HEAD, {}),
    "garbage-bytes": (FaultKind.GARBAGE_BYTES, {}),
    "abort": (FaultKind.ABORT, {}),
}
D_HANGS = {"hangs-before-head", "hangs-after-head"}
FORMS = [Shape(), Shape(chat=True, stream=True)]


@pytest.fixture(params=FORMS, ids=["text", "chat-stream"])
def form(request: pytest.FixtureRequest) -> Shape:
    return Shape(request.param.chat, request.param.stream)


async def _warmed_up(world: World, form: Shape) -> None:
    """Send some requests first, so that connections have been used and pairs have a handshake."""
    for _ in range(4):
        assert (await world.complete(form)).status == 200


@pytest.mark.parametrize("name", D_FAULTS)
async def test_the_only_decode_fails(name: str, order: Order, make_world: MakeWorld) -> None:
    """It gets the request again. If it is silent, only a stream has a deadline before `total`."""
    kind, fields = D_FAULTS[name]
    shape = Shape(stream=True) if name in D_HANGS else Shape()
    world = await make_world(order, sim={"lease_seconds": 1.0}, deadlines=replace(SHORT, settle=1.0))
    world.allowed.stranded = not world.pull
    world.allowed.expired = True
    await _warmed_up(world, Shape())
    world.fault(world.d, kind, **fields)
    reply = await world.complete(shape)
    assert (reply.status, reply.text) == (200, shape.expected()), reply
    assert world.d.counts.faults[kind.value] == 1
    world.d.faults.clear()
    await world.warm()
    assert (await world.complete()).text == Shape().expected()


@pytest.mark.parametrize("kind", [FaultKind.DIE_AFTER_HEAD, FaultKind.DIE_AFTER_EVENTS])
async def test_an_answer_that_breaks_off_ejects_no_engine(kind: FaultKind, order: Order, make_world: MakeWorld) -> None:
    """As of a request that vLLM refuses only inside its stream: other requests keep their engines."""
    shape = Shape(stream=True)
    world = await make_world(order, 1, 2, sim={"lease_seconds": 1.0}, deadlines=Deadlines(settle=1.0))
    world.allowed.stranded = not world.pull
    world.allowed.expired = True
    await _warmed_up(world, shape)
    starts = [world.endpoint(engine).generation for engine in world.decode]
    for engine in world.decode:
        world.fault(engine, kind, events=3)
    replies = [await world.complete(shape) for _ in range(6)]
    assert replies[-1].text == shape.expected()
    assert all(engine.counts.faults[kind.value] == 1 for engine in world.decode)
    await asyncio.sleep(0.5)  # health checks
    assert [world.endpoint(engine).generation for engine in world.decode] == starts
    assert not any((await world.state())["ejections"].values())


async def test_an_engine_that_breaks_off_each_stream_is_ejected(order: Order, make_world: MakeWorld) -> None:
    shape = Shape(stream=True)
    world = await make_world(order, 1, 2, sim={"lease_seconds": 1.0})
    world.allowed.stranded = not world.pull
    world.allowed.expired = True
    await _warmed_up(world, shape)
    world.fault(world.d, FaultKind.DIE_AFTER_EVENTS, events=3, count=None)
    for _ in range(40):
        await world.complete(shape)
        if (await world.state())["ejections"].get("consecutive_errors"):
            break
    else:
        raise AssertionError("never ejected")
    world.d.faults.clear()


async def test_one_decode_of_two_refuses(order: Order, form: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, 1, 2, deadlines=SHORT, idle_seconds=0.0)
    world.decode[1].faults.add(FaultKind.REFUSE)
    for _ in range(4):
        assert (await world.complete(form)).text == form.expected()
    assert await world.outcomes() == {"split": 4}


BAD: dict[str, dict[str, Any]] = {
    "too-many-tokens": {"max_tokens": 100_000},
    "wrong-model": {"model": "nobody"},
    "no-tokens": {"max_tokens": 0},
    "wrong-type": {"max_tokens": "many"},
    "too-long": {"prompt": "x" * 40_000, "messages": [{"role": "user", "content": "x" * 40_000}]},
}


@pytest.mark.parametrize("name", BAD)
async def test_a_refusal_has_the_engines_text(name: str, order: Order, form: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order)
    body = {**form.body(), **BAD[name]}
    direct = await world.call("POST", f"{world.d.url}{form.path}", body)
    world.allowed.stranded = False
    for _ in range(3):
        reply = await world.post(form.path, body)
        assert (reply.status, reply.json) == (direct.status, direct.json)
    assert await world.outcomes() == {"refused_by_engine": 3}
    assert (await world.complete(form)).text == form.expected()


async def test_a_refused_pair_that_is_new_leaves_nothing(make_world: MakeWorld) -> None:
    """Pull: a D without a handshake with this P cannot notify it of the refusal."""
    world = await make_world(Order.PREFILL_FIRST, 2, 2)
    for _ in range(8):
        assert (await world.complete(max_tokens=100_000, tokens=1)).status == 400
    for engine in world.prefill:
        assert engine.counts.expired == 0


async def test_errors_of_every_engine_reach_the_client(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """A D that keeps answering 500: the client gets the engine's error, and the gateway stays ready."""
    world = await make_world(order, sim={"lease_seconds": 0.4})
    world.allowed.expired = True  # such a D cannot release P's blocks either
    world.d.faults.add(FaultKind.STATUS, count=None, status=500)
    reply = await world.complete(form)
    assert (reply.status, reply.error["message"]) == (500, "simulated fault")
    assert (await world.call("GET", f"{world.url}/ready")).status == 200
    world.d.faults.clear()
    await world.warm()
    assert (await world.complete(form)).text == form.expected()
