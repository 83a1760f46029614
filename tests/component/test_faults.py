"""A fault at every await before the first event ends in a right answer, or in an error that says to come again."""

import asyncio
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Shape, World

P_FAULTS: dict[str, tuple[FaultKind, dict[str, Any]]] = {
    "400": (FaultKind.STATUS, {"status": 400}),
    "404": (FaultKind.STATUS, {"status": 404}),
    "429": (FaultKind.STATUS, {"status": 429}),
    "500": (FaultKind.STATUS, {"status": 500}),
    "503": (FaultKind.STATUS, {"status": 503}),
    "dies-before-head": (FaultKind.DIE_BEFORE_HEAD, {}),
    "loses-answer": (FaultKind.LOSE_ANSWER, {}),
    "dies-amid-answer": (FaultKind.DIE_AFTER_HEAD, {}),
    "hangs": (FaultKind.HANG_BEFORE_HEAD, {}),
    "garbage-bytes": (FaultKind.GARBAGE_BYTES, {}),
    "garbage-json": (FaultKind.GARBAGE_JSON, {}),
    "no-params": (FaultKind.NO_PARAMS, {}),
    "abort": (FaultKind.ABORT, {}),
}
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
FINISHES_P = {"loses-answer", "dies-amid-answer", "garbage-json", "no-params"}
"""P has finished when these strike and nobody learns where its KV is: it waits for its lease."""
D_HANGS = {"hangs-before-head", "hangs-after-head"}
"""A D that is the only one is asked again, except after a deadline."""
FORMS = [Shape(), Shape(chat=True, stream=True)]


@pytest.fixture(params=FORMS, ids=["text", "chat-stream"])
def form(request: pytest.FixtureRequest) -> Shape:
    return Shape(request.param.chat, request.param.stream)


@pytest.fixture(params=[(0, 1), (1, 2)], ids=["text-1P1D", "chat-stream-2P2D"])
def kind_and_size(request: pytest.FixtureRequest) -> tuple[Shape, int]:
    form, size = request.param
    return FORMS[form], size


@pytest.fixture(params=[1, 2], ids=["1P1D", "2P2D"])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def retry_after(world_reply: Any) -> str:
    return str(world_reply.headers.get("retry-after", ""))


async def _warmed_up(world: World, form: Shape) -> None:
    """Some requests first, so that connections are used ones and pairs know each other."""
    for _ in range(4):
        assert (await world.ask(form)).status == 200


@pytest.mark.parametrize("name", P_FAULTS)
async def test_prefill_fails(name: str, order: Order, kind_and_size: tuple[Shape, int], make_world: MakeWorld) -> None:
    form, size = kind_and_size
    kind, fields = P_FAULTS[name]
    world = await make_world(order, size, size, sim={"lease_seconds": 0.4}, deadlines=SHORT)
    world.allowed.expired = name in FINISHES_P
    await _warmed_up(world, form)
    for engine in world.prefill:
        world.fault(engine, kind, **fields)
    reply = await world.ask(form)
    assert (reply.status, reply.text) == (200, form.expected())
    assert sum(engine.counts.faults[kind.value] for engine in world.prefill) >= 1
    for engine in world.prefill:
        engine.faults.clear()
    # a P that refused leaves a push D waiting for ever: nothing outside it frees its blocks
    world.allowed.stranded = not world.pull
    await world.warm()
    outcomes = await world.outcomes()
    assert (await world.ask(form)).text == form.expected()
    assert (await world.outcomes())["split"] == outcomes["split"] + 1


@pytest.mark.parametrize("name", ["500", "dies-before-head", "dies-amid-answer", "abort"])
async def test_prefill_fails_for_good(name: str, order: Order, form: Shape, make_world: MakeWorld) -> None:
    """The D that waits for it is told at once, whatever its own deadline, and gets no second leg of the hand-off."""
    kind, fields = P_FAULTS[name]
    world = await make_world(order, sim={"lease_seconds": 0.4})
    world.allowed.stranded = not world.pull
    world.allowed.expired = True
    await _warmed_up(world, form)
    legs = world.d.counts.legs["decode"]
    world.fault(world.p, kind, count=None, **fields)
    async with asyncio.timeout(5):
        assert (await world.ask(form)).text == form.expected()
    assert world.d.counts.legs["decode"] - legs == (0 if world.pull else 1)
    world.p.faults.clear()


@pytest.mark.parametrize("name", D_FAULTS)
async def test_decode_fails(name: str, order: Order, kind_and_size: tuple[Shape, int], make_world: MakeWorld) -> None:
    form, size = kind_and_size
    kind, fields = D_FAULTS[name]
    world = await make_world(order, size, size, sim={"lease_seconds": 0.4}, deadlines=SHORT)
    world.allowed.stranded = not world.pull
    world.allowed.expired = True
    await _warmed_up(world, form)
    world.fault(world.d, kind, **fields)
    for _ in range(size):  # equals are taken in turn: one of them meets the fault
        reply = await world.ask(form)
        if size == 2 or name not in D_HANGS:
            assert (reply.status, reply.text) == (200, form.expected()), reply
        else:
            assert (reply.status, reply.error["type"], retry_after(reply)) == (503, "ServiceUnavailableError", "1")
    assert world.d.counts.faults[kind.value] == 1
    for engine in world.decode:
        engine.faults.clear()
    await world.warm()
    assert (await world.ask(form)).text == form.expected()


@pytest.mark.parametrize("role", ["prefill", "decode", "both"])
async def test_port_refuses(role: str, order: Order, form: Shape, size: int, make_world: MakeWorld) -> None:
    world = await make_world(order, size, size, sim={"lease_seconds": 0.4}, deadlines=SHORT, idle_seconds=0.0)
    world.allowed.expired = role == "decode"  # in pull P has finished when the gateway learns that no D is left
    await _warmed_up(world, form)
    engines = {"prefill": world.prefill, "decode": world.decode, "both": world.engines}[role]
    for engine in engines:
        engine.faults.add(FaultKind.REFUSE)
    reply = await world.ask(form)
    if role == "prefill":
        assert (reply.status, reply.text) == (200, form.expected())
    else:
        assert (reply.status, reply.error["code"], retry_after(reply)) == (503, 503, "1")
    for engine in engines:
        engine.faults.clear()
    await world.warm()
    assert (await world.ask(form)).text == form.expected()


async def test_one_decode_of_two_refuses(order: Order, form: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, 1, 2, deadlines=SHORT, idle_seconds=0.0)
    world.decode[1].faults.add(FaultKind.REFUSE)
    for _ in range(4):
        assert (await world.ask(form)).text == form.expected()
    assert await world.outcomes() == {"split": 4}


BAD: dict[str, dict[str, Any]] = {
    "too-many-tokens": {"max_tokens": 100_000},
    "wrong-model": {"model": "nobody"},
    "no-tokens": {"max_tokens": 0},
    "wrong-type": {"max_tokens": "many"},
    "too-long": {"prompt": "x" * 40_000, "messages": [{"role": "user", "content": "x" * 40_000}]},
}


@pytest.mark.parametrize("name", BAD)
async def test_refusal_is_in_the_engines_words(name: str, order: Order, form: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order)
    body = {**form.body(), **BAD[name]}
    direct = await world.call("POST", f"{world.d.url}{form.path}", body)
    world.allowed.stranded = False
    for _ in range(3):
        reply = await world.post(form.path, body)
        assert (reply.status, reply.json) == (direct.status, direct.json)
    assert await world.outcomes() == {"refused_by_engine": 3}
    assert (await world.ask(form)).text == form.expected()


async def test_a_refused_pair_that_is_new_leaves_nothing(make_world: MakeWorld) -> None:
    """Pull: a D that never fetched from this P has no way to tell it of its refusal."""
    world = await make_world(Order.PREFILL_FIRST, 2, 2)
    for _ in range(8):
        assert (await world.ask(max_tokens=100_000, tokens=1)).status == 400
    for engine in world.prefill:
        assert engine.counts.expired == 0


async def test_errors_of_every_engine_reach_the_client(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """A D that goes on answering 500: the client gets the engine's words, and the gateway stays ready."""
    world = await make_world(order, sim={"lease_seconds": 0.4})
    world.allowed.expired = True  # such a D settles nothing either
    world.d.faults.add(FaultKind.STATUS, count=None, status=500)
    reply = await world.ask(form)
    assert (reply.status, reply.error["message"]) == (500, "simulated fault")
    assert (await world.call("GET", f"{world.url}/ready")).status == 200
    world.d.faults.clear()
    await world.warm()
    assert (await world.ask(form)).text == form.expected()
