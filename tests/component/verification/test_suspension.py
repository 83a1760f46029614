"""KV that does not move costs only speed: D serves alone, splitting stops by itself, and returns after a repair."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_api.settings.gateway import Verification
from pdx_api.verification import Verdict
from pdx_proxy.config.settings import Deadlines, Retries
from pdx_proxy.endpoints.events import NotReady, Suspect
from pdx_proxy.verification import attempt, prober, record, schedule, suspension
from pdx_sim import FaultKind, SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import Reply, Shape, World, eventually

NO_BUDGET = Retries(budget_percent=0, min_retries=0)
FORMS: dict[str, Any] = {
    "verification": Verification(period_seconds=30.0),
    "retries": NO_BUDGET,
    "deadlines": Deadlines(handoff_seconds=1.0, settle=2.0, warm_up=2.0),
}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(prober, "_PROOF_SECONDS", 0.5)
    monkeypatch.setattr(attempt, "LEG_SECONDS", 1.0)
    monkeypatch.setattr(record, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(record, "_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(schedule, "SUSPENDED_SECONDS", 0.5)
    monkeypatch.setattr(suspension, "WATCH_SECONDS", 0.5)


async def blocked_world(make_world: MakeWorld, order: Order, prefill: int, decode: int) -> World:
    world = await make_world(order, prefill, decode, sim={"lease_seconds": 1.0}, **FORMS)
    world.allowed.expired = world.allowed.stranded = True
    return world


def block(engines: Sequence[SimEngine], seconds: float) -> None:
    for engine in engines:
        if seconds:
            engine.faults.add(FaultKind.BLOCK_TRANSFER, seconds=seconds)
        else:
            engine.faults.clear()
        engine.station.handshaken.clear()


async def several(world: World, shape: Shape, number: int = 6) -> list[Reply]:
    return [reply async for reply in _paced(world, shape, number)]


async def _paced(world: World, shape: Shape, number: int) -> Any:
    tasks = []
    for _ in range(number):
        tasks.append(asyncio.create_task(world.complete(shape)))
        await asyncio.sleep(0.02)
    for task in tasks:
        yield await task


def suspended(world: World) -> int:
    return len(world.gateway.registry.snapshot.suspended)


async def split_and_not(world: World) -> tuple[int, int]:
    state = await world.state()
    return state["outcomes"].get("split", 0), state["notSplit"]["suspended"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_without_kv_every_request_is_served_whole(order: Order, stream: bool, make_world: MakeWorld) -> None:
    """No request fails, although the retry budget allows no retry. Splitting returns when KV moves again."""
    world, shape = await blocked_world(make_world, order, 2, 2), Shape(stream=stream)
    assert [reply.status for reply in await several(world, shape)] == [200] * 6
    block(world.decode, 3600.0)
    replies = await several(world, shape)
    assert [(reply.status, reply.text) for reply in replies] == [(200, shape.expected())] * 6
    await eventually(lambda: suspended(world) == 4, 20.0, "all pairs are suspended")
    split, whole = await split_and_not(world)
    assert {reply.status for reply in await several(world, shape)} == {200}
    assert await split_and_not(world) == (split, whole + 6)
    block(world.decode, 0.0)
    await eventually(lambda: suspended(world) == 0, 20.0, "all pairs have returned")
    assert {reply.status for reply in await several(world, shape)} == {200}
    assert await split_and_not(world) == (split + 6, whole + 6)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_read_whose_packets_are_lost_is_not_awaited(stream: bool, make_world: MakeWorld) -> None:
    """D's read neither ends nor fails. The gateway probes the pair, suspends it, and ends D's wait."""
    world, shape = await blocked_world(make_world, Order.PREFILL_FIRST, 1, 1), Shape(stream=stream)
    await several(world, shape, 2)
    await eventually(lambda: world.gateway.prober.finding.verdict is Verdict.VERIFIED, 20.0, "the pair works")
    world.d.faults.add(FaultKind.DROP_TRANSFER, seconds=3600.0)
    async with asyncio.timeout(15.0):
        replies = await several(world, shape)
    assert [(reply.status, reply.text) for reply in replies] == [(200, shape.expected())] * 6
    assert suspended(world) == 1
    assert (await world.outcomes())["whole"] == 6
    world.d.faults.clear()
    await eventually(lambda: suspended(world) == 0, 20.0, "the pair has returned")
    assert (await world.complete(shape)).status == 200
    assert (await world.outcomes())["split"] == 3


@pytest.mark.parametrize("event", [Suspect, NotReady])
async def test_a_suspension_outlives_another_warm_up_of_d(
    order: Order, event: type[Suspect | NotReady], make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warm-up of D shows nothing about the pair, and no request waits for KV until a probe has moved some."""
    world, shape = await blocked_world(make_world, order, 1, 1), Shape(stream=True)
    await several(world, shape, 2)
    block(world.decode, 3600.0)
    await several(world, shape, 2)
    await eventually(lambda: suspended(world) == 1, 20.0, "the pair is suspended")
    split, whole = await split_and_not(world)
    monkeypatch.setattr(schedule, "SUSPENDED_SECONDS", 3600.0)
    before = world.endpoint(world.d)
    world.d.faults.add(FaultKind.LONG_PREFILL, seconds=0.5)  # several sweeps find no warm D
    world.gateway.endpoint_manager.on_event(event(*before.start, "lost"))
    await eventually(lambda: world.endpoint(world.d).generation > before.generation, 20.0, "D has warmed up again")
    for _ in range(5):
        assert suspended(world) == 1
        assert {reply.status for reply in await several(world, shape, 2)} == {200}
    assert await split_and_not(world) == (split, whole + 10)


async def test_the_pairs_of_other_engines_are_used_first(order: Order, make_world: MakeWorld) -> None:
    world, shape = await blocked_world(make_world, order, 2, 2), Shape(stream=True)
    await several(world, shape)
    block(world.decode[:1], 3600.0)
    assert {reply.status for reply in await several(world, shape)} == {200}
    await eventually(lambda: suspended(world) == 2 and not world.gateway.registry.snapshot.watched, 20.0, "one D")
    split, whole = await split_and_not(world)
    assert {reply.status for reply in await several(world, shape)} == {200}
    assert await split_and_not(world) == (split + 6, whole)


async def test_a_hand_off_that_fails_for_another_reason_suspends_nothing(
    order: Order, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspension, "WATCH_SECONDS", 10.0)
    world, shape = await blocked_world(make_world, order, 1, 1), Shape(stream=True)
    await world.complete(shape)
    await eventually(lambda: world.gateway.prober.finding.verdict is Verdict.VERIFIED, 20.0, "no probe gets the fault")
    world.fault(world.d, FaultKind.STATUS, status=500)
    assert (await world.complete(shape)).status == 200
    await eventually(lambda: not world.gateway.registry.snapshot.watched, 20.0, "the probe moves KV")
    assert not suspended(world)
    assert (await world.outcomes())["split"] == 1
    assert (await world.complete(shape)).status == 200
    assert (await world.outcomes())["split"] == 2


@pytest.mark.parametrize("order", [Order.DECODE_FIRST, Order.CONCURRENT])
async def test_kv_that_was_lost_before_the_repair_is_not_awaited(order: Order, make_world: MakeWorld) -> None:
    """The pair moves KV again, so that it is not suspended. But the lease of what it has not moved ends at P."""
    world, shape = await blocked_world(make_world, order, 1, 1), Shape()
    await several(world, shape, 2)
    await eventually(lambda: world.gateway.prober.finding.verdict is Verdict.VERIFIED, 20.0, "no probe pushes")
    world.p.faults.add(FaultKind.LONG_PREFILL, seconds=0.5)
    world.p.station.channel.block(3600.0)
    request = asyncio.create_task(world.complete(shape))
    await eventually(lambda: world.p.counts.push_failures == 1, 10.0, "P's write is lost")
    world.p.station.channel.block(0.0)
    async with asyncio.timeout(15.0):
        reply = await request
    assert (reply.status, reply.text) == (200, shape.expected())
    assert (await world.outcomes())["whole"] == 1
