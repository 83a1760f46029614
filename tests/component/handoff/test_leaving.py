"""A client leaves in any phase: the hand-off is settled as in docs/settling.md, and no work remains."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Deadlines
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Shape, World, eventually

SLOW_PREFILL = {"prefill_base_seconds": 0.0, "prefill_token_seconds": 5e-4, "prefill_chunk": 16}
LONG = 3000


async def _leave(world: World, task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: not _busy(world), 3.0, "the gateway serves nobody")


def _busy(world: World) -> int:
    return int(world.report["inFlight"]["requests"])


def _begin(world: World, shape: Shape, **body: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(world.complete(shape, **body))


async def test_before_the_body_is_complete(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    legs = [engine.counts.legs.total() for engine in world.engines]
    _, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    world.sent += 1
    await eventually(lambda: _busy(world))
    writer.close()
    await eventually(lambda: not _busy(world))
    assert await world.outcomes() == {"client_left": 1}
    assert [engine.counts.legs.total() for engine in world.engines] == legs


@pytest.mark.parametrize("used", [False, True], ids=["new-connections", "used-connections"])
async def test_while_prefill_computes(used: bool, order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, p=SLOW_PREFILL, deadlines=Deadlines(nearly_done=0.1))
    if used:
        await world.complete(shape)
    finished, legs = world.p.counts.prefills_finished, world.p.counts.legs["prefill"]
    task = _begin(world, shape)
    await eventually(lambda: world.p.counts.running_now)
    await _leave(world, task)
    await eventually(lambda: not world.report["inFlight"]["settling"])
    counts = world.p.counts
    await eventually(lambda: not (counts.running_now or counts.waiting_now))
    await eventually(lambda: counts.prefills_aborted or counts.prefills_finished > finished)
    assert counts.legs["prefill"] == legs + 1, "P gets the leg once"
    if world.pull:
        assert (counts.prefills_aborted, counts.prefills_finished) == (1, finished)
        assert await world.settlements() == {"prefill_stopped": 1}
    else:
        assert (counts.prefills_aborted, counts.prefills_finished) == (0, finished + 1)
        assert await world.settlements() == {"finished": 1}
    assert (await world.outcomes())["client_left"] == 1


async def test_between_the_legs(shape: Shape, make_world: MakeWorld) -> None:
    """Pull: P has finished, and D's connection takes its time."""
    world = await make_world(Order.PREFILL_FIRST, idle_seconds=0.0)
    pool, connect = world.pool, world.pool.connect
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(address: Any, name: str) -> Any:
        if address.port == world.d.port and not reached.is_set():
            reached.set()
            await go_on.wait()
        return await connect(address, name)

    pool.connect = slow  # type: ignore[method-assign]
    task = _begin(world, shape)
    await reached.wait()
    assert world.p.counts.blocks_pinned_now > 0
    await _leave(world, task)
    await eventually(lambda: not world.p.counts.blocks_held_now)
    assert world.p.counts.released == 1
    assert await world.settlements() == {"released": 1}
    assert world.d.counts.refused == 1


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_while_connecting(leg: str, order: Order, shape: Shape, make_world: MakeWorld) -> None:
    """Push connects to both engines before it sends: if the client leaves meanwhile, no engine has got anything."""
    if order is Order.PREFILL_FIRST and leg == "decode":
        return  # test_between_the_legs
    world = await make_world(order, idle_seconds=0.0)
    legs = [engine.counts.legs.total() for engine in world.engines]
    reached, connect = asyncio.Event(), world.pool.connect
    port = (world.p if leg == "prefill" else world.d).port

    async def never(address: Any, name: str) -> Any:
        if address.port == port:
            reached.set()
            await asyncio.Event().wait()
        return await connect(address, name)

    world.pool.connect = never  # type: ignore[method-assign]
    task = _begin(world, shape)
    await reached.wait()
    await _leave(world, task)
    assert [engine.counts.legs.total() for engine in world.engines] == legs
    assert await world.settlements() == {}


@pytest.mark.parametrize("fresh", [False, True], ids=["old-pair", "new-pair"])
async def test_while_decode_waits_for_kv(fresh: bool, order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, 1, 2 if fresh else 1, d={"transfer_seconds": 0.3}, p={"transfer_seconds": 0.3})
    before = [engine.counts.legs["decode"] for engine in world.decode]
    task = _begin(world, shape, tokens=LONG)

    def waits() -> bool:
        arrived = any(e.counts.legs["decode"] > old for e, old in zip(world.decode, before, strict=True))
        return arrived and world.p.counts.blocks_pinned_now > 0

    await eventually(waits)
    await _leave(world, task)
    await eventually(lambda: not any(engine.counts.blocks_held_now for engine in world.engines))
    assert (await world.outcomes()) == {"client_left": 1}
    assert sum(engine.counts.generation_tokens for engine in world.decode) < LONG


async def test_in_the_stream(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, d={"decode_token_seconds": 0.002})
    reader, writer = await world.raw(Shape(stream=True).body(tokens=LONG))
    await reader.readuntil(b"data: ")
    await reader.readuntil(b"data: ")
    writer.close()
    await eventually(lambda: not world.d.counts.running_now, 2.0)
    await eventually(lambda: world.d.counts.aborted == 1)
    assert world.d.counts.generation_tokens < LONG / 2
    assert await world.outcomes() == {"client_left": 1}


async def test_without_a_stream(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, d={"decode_token_seconds": 0.002})
    generated = world.d.counts.generation_tokens
    task = _begin(world, Shape(), tokens=LONG)
    await eventually(lambda: world.d.counts.generation_tokens > generated + 5)
    await _leave(world, task)
    await eventually(lambda: not world.d.counts.running_now, 2.0)
    await eventually(lambda: world.d.counts.aborted == 1)
    assert world.d.counts.generation_tokens < LONG / 2


async def test_whole_requests_stop_too(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d={"decode_token_seconds": 0.002})
    generated = world.d.counts.generation_tokens
    task = _begin(world, Shape(), tokens=LONG, n=2)
    await eventually(lambda: world.d.counts.generation_tokens > generated + 5)
    await _leave(world, task)
    await eventually(lambda: not world.d.counts.running_now, 2.0)
    await eventually(lambda: world.d.counts.aborted == 2)


async def test_a_hanging_prefill_is_let_go(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, deadlines=replace(SHORT, prefill_seconds=0.5, settle=0.5))
    world.allowed.stranded = not world.pull
    world.fault(world.p, FaultKind.HANG_BEFORE_HEAD, count=None)
    task = _begin(world, shape)
    await eventually(lambda: world.p.counts.faults["hang_before_head"])
    await _leave(world, task)
    await eventually(lambda: any(world.report["settlements"].values()), 10.0)
    expected = {"prefill_stopped": 1} if world.pull else {"decode_lost": 1}
    assert await world.settlements() == expected
