"""Engines that answer 429 or 503 with Retry-After get no request for that time; clients get the time."""

import asyncio
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import SHAPES, Shape, World, eventually

STATUSES = [429, 503]


def _busy(world: World, engine: Any, status: int, **more: Any) -> None:
    world.fault(engine, FaultKind.STATUS, status=status, **{"retry_after": 30, **more})


@pytest.mark.parametrize("status", STATUSES)
async def test_another_decode_serves_meanwhile(status: int, order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, decode=2)
    _busy(world, world.d, status)
    for number in range(6):
        reply = await world.complete(prompt=f"prompt {number}")
        assert (reply.status, reply.text) == (200, Shape().expected(f"prompt {number}"))
    assert world.d.counts.faults[FaultKind.STATUS.value] == 1
    others = world.decode[1].counts.requests.total()
    assert others >= 6, "all of them"
    assert (await world.outcomes())["split"] == 6
    assert [e.state.value for e in world.gateway.registry.snapshot.everything] == ["Warm"] * 3, "busy is no failure"


async def test_a_busy_decode_frees_nothing(make_world: MakeWorld) -> None:
    """Another D frees P's blocks, by a leg that it refuses."""
    world = await make_world(Order.PREFILL_FIRST, decode=2)
    for engine in world.decode:
        world.worker._serving.mark_handshake(world.endpoint(world.p), world.endpoint(engine))
    before = {engine.port: engine.counts.requests.total() for engine in world.decode}
    world.decode[1].faults = world.d.faults
    _busy(world, world.d, 429)
    assert (await world.complete()).text == Shape().expected()
    await eventually(lambda: world.report["settlements"]["released"])
    (busy,) = (engine for engine in world.decode if engine.counts.faults)
    assert busy.counts.requests.total() - before[busy.port] == 1
    assert await world.settlements() == {"released": 1}


@pytest.mark.parametrize("status", STATUSES)
async def test_another_prefill_serves_meanwhile(status: int, order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, prefill=2)
    world.allowed.stranded = True  # by a P that refuses every leg
    _busy(world, world.p, status, count=None)
    for number in range(6):
        reply = await world.complete(prompt=f"prompt {number}")
        assert (reply.status, reply.text) == (200, Shape().expected(f"prompt {number}"))
    # In push orders the same leg is sent again, because D waits for it; no other request reaches this P.
    assert world.p.counts.faults[FaultKind.STATUS.value] <= (1 if world.pull else 3)
    outcomes = await world.outcomes()
    assert outcomes == {"split": 6} or (not world.pull and outcomes == {"split": 5, "whole": 1})


async def test_decode_serves_alone_while_every_prefill_is_busy(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    _busy(world, world.p, 503, count=None)
    for number in range(3):
        assert (await world.complete(prompt=f"prompt {number}")).text == Shape().expected(f"prompt {number}")
    assert await world.outcomes() == {"whole": 3}
    assert world.p.counts.faults[FaultKind.STATUS.value] == 1


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("shape", [s for s in SHAPES if not s.chat], ids=["whole", "stream"])
async def test_clients_get_the_time(status: int, shape: Shape, order: Order, make_world: MakeWorld) -> None:
    """First the engine's own answer; then the gateway's, without a request to the engine."""
    world = await make_world(order, sim={"lease_seconds": 3.0})
    world.allowed.expired = world.allowed.stranded = True
    world.d.faults.add(FaultKind.STATUS, status=status, retry_after=30)
    reply = await world.complete(shape)
    assert (reply.status, reply.error["message"], reply.headers["retry-after"]) == (status, "simulated fault", "30")
    await asyncio.sleep(0.05)
    before = world.d.counts.requests.total()
    reply = await world.complete(shape)
    assert (reply.status, reply.error["code"]) == (503, 503)
    assert 28 <= int(reply.headers["retry-after"]) <= 30
    assert world.d.counts.requests.total() == before
    assert await world.outcomes() == {"unavailable": 2}


async def test_the_engine_is_used_again(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim={"lease_seconds": 3.0})
    load = world.worker._engines.load
    world.d.faults.add(FaultKind.STATUS, status=503, retry_after=30)
    world.allowed.expired = True
    assert (await world.complete()).status == 503
    now = load.clock()
    monkeypatch.setattr(load, "clock", lambda: now + 31.0)
    assert (await world.complete()).text == Shape().expected()
    assert load.backing_off == {}


@pytest.mark.parametrize("status", STATUSES)
async def test_without_a_time_all_is_as_before(status: int, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, decode=2, sim={"lease_seconds": 2.0})
    for engine in world.decode:
        engine.faults.add(FaultKind.STATUS, status=status, count=None)
    world.allowed.expired = True
    reply = await world.complete()
    assert (reply.status, reply.headers.get("retry-after")) == ((429, None) if status == 429 else (503, "1"))
    assert not world.worker._engines.load.backing_off
    for engine in world.decode:
        engine.faults.clear()
