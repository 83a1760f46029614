"""Ejection after consecutive errors, the last engine, leaked blocks of a D, slow start."""

import asyncio
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Health
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause
from pdx_proxy.health.warm_up import WarmUps
from pdx_sim import FaultKind, Leg, SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Shape, World, eventually

PULL = Order.PREFILL_FIRST


def ejections(**counts: int) -> dict[str, int]:
    """The ejections by cause."""
    return {**dict.fromkeys(map(str, Cause), 0), **counts}


async def _described(world: World, engine: SimEngine) -> dict[str, Any]:
    name = world.endpoint(engine).name
    return next(each for each in (await world.state())["endpoints"] if each["name"] == name)


async def _metric(world: World, start: str) -> str:
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    return next((line.split()[-1] for line in page.splitlines() if line.startswith(start)), "")


@pytest.mark.parametrize("kind", [FaultKind.STATUS, FaultKind.ERROR_EVENT, FaultKind.ABORT])
async def test_consecutive_failures_eject_an_engine(
    kind: FaultKind, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is warmed up until it answers, then it is selected again."""
    world = await make_world(PULL, 0, 2, health=Health(consecutive_errors=3))
    form, seen, warm_up = Shape(stream=True), asyncio.Event(), WarmUps._warm

    async def warm_later(self: WarmUps, endpoint: Endpoint) -> None:
        await seen.wait()
        await warm_up(self, endpoint)

    monkeypatch.setattr(WarmUps, "_warm", warm_later)
    world.d.faults.add(kind, count=5)
    count = 0
    while world.endpoint(world.d).warm:
        assert (await world.complete(form)).text == form.expected()
        count += 1
    assert count <= 6
    assert world.endpoint(world.d).state is State.SUSPECT
    described = await _described(world, world.d)
    assert (described["state"], described["ejections"]) == ("Suspect", 1)
    assert described["reason"].startswith("3 consecutive errors, the last: ")
    assert (await world.state())["ejections"] == ejections(consecutive_errors=1)
    assert await _metric(world, 'pdx_ejections_total{reason="consecutive_errors"}') == "1.0"
    served = world.decode[1].counts.requests.total()
    for _ in range(6):
        assert (await world.complete(form)).text == form.expected()
    assert world.decode[1].counts.requests.total() == served + 6, "the ejected one gets no request but its warm-ups"
    seen.set()
    await world.warm()
    assert world.d.counts.faults[kind.value] == 5, "it was warmed up until it answered"
    assert (world.endpoint(world.d).generation, world.endpoint(world.d).reason) == (2, None)


async def test_an_engine_that_fails_again_is_ejected_for_longer(make_world: MakeWorld) -> None:
    """It answers only warm-ups."""
    world = await make_world(PULL, 1, 2, health=Health(consecutive_errors=1), sim={"lease_seconds": 0.3})
    world.allowed.expired = True
    world.fault(world.d, FaultKind.STATUS, count=None)
    loop = asyncio.get_running_loop()
    pauses: list[float] = []
    while len(pauses) < 3:
        while world.endpoint(world.d).warm:
            task = asyncio.create_task(world.complete())
            await eventually(lambda task=task: task.done() or not world.endpoint(world.d).warm)  # type: ignore[misc]
            began = loop.time()  # before the request is tried again
            assert (await task).text == Shape().expected()
        await eventually(lambda: world.endpoint(world.d).warm)
        pauses.append(loop.time() - began)
        assert world.endpoint(world.d).ejections == len(pauses)
    assert pauses[0] >= 0.1
    assert pauses[2] >= 0.4, "at least half of four times the first"


@pytest.mark.parametrize("status", [400, 404, 503])
async def test_refusals_and_a_full_queue_do_not_count(status: int, make_world: MakeWorld) -> None:
    world = await make_world(PULL, 0, 2, health=Health(consecutive_errors=1))
    world.d.faults.add(FaultKind.STATUS, count=6, status=status)
    while world.d.faults.active:
        await world.complete()
    assert all(world.endpoint(engine).generation == 1 for engine in world.decode)
    assert (await world.state())["ejections"] == ejections()


async def test_a_decode_is_not_ejected_for_a_prefill_whose_kv_cannot_be_used(make_world: MakeWorld) -> None:
    """D's answer 500 to hand-offs of one P. They count against D once, and P is the last one, so nothing is ejected."""
    slow = {"prefill_base_seconds": 0.2, "prefill_slots": 8}
    world = await make_world(PULL, 1, 2, p=slow, sim={"lease_seconds": 0.5}, health=Health(consecutive_errors=3))
    world.allowed.expired = True
    for engine in world.decode:
        world.fault(engine, FaultKind.STATUS, count=99, leg=Leg.DECODE)
    replies = await asyncio.gather(*(world.complete() for _ in range(5)))
    assert [reply.text for reply in replies] == [Shape().expected()] * 5
    assert sum(engine.counts.faults["status"] for engine in world.decode) >= 7
    found = (await world.state())["ejections"]
    assert found == ejections(overridden=found["overridden"])
    assert found["overridden"] >= 1
    assert all(world.endpoint(engine).generation == 1 for engine in world.engines)


async def test_an_error_of_a_decode_does_not_eject_its_prefill(make_world: MakeWorld) -> None:
    """A client finds a request that D answers with 500 and P does not."""
    world = await make_world(PULL, 2, 2, sim={"lease_seconds": 0.5}, health=Health(consecutive_errors=5))
    world.allowed.expired = True
    world.fault(world.d, FaultKind.STATUS, count=2)
    while world.d.faults.active:
        assert (await world.complete()).text == Shape().expected()
    assert (await world.state())["ejections"] == ejections()
    assert all(world.endpoint(engine).generation == 1 for engine in world.engines)


async def test_a_success_resets_the_count(make_world: MakeWorld) -> None:
    world = await make_world(PULL, 0, 1, health=Health(consecutive_errors=3))
    for _ in range(4):
        world.d.faults.add(FaultKind.STATUS, count=2)
        assert (await world.complete()).text == Shape().expected()
    assert (await world.state())["ejections"] == ejections()


async def test_the_last_engine_is_not_ejected(make_world: MakeWorld) -> None:
    world = await make_world(PULL, 0, 1, health=Health(consecutive_errors=3))
    world.d.faults.add(FaultKind.STATUS, count=9)
    statuses = set()
    while world.d.faults.active:
        statuses.add((await world.complete()).status)
        assert world.endpoint(world.d).warm
    assert 500 in statuses, "the engine's own error"
    assert (await world.state())["ejections"] == ejections(overridden=3)
    assert (await world.complete()).text == Shape().expected()


async def test_a_prefill_is_ejected_only_with_a_substitute(make_world: MakeWorld) -> None:
    world = await make_world(PULL, 2, 1, health=Health(consecutive_errors=2))
    for engine in world.prefill:
        world.fault(engine, FaultKind.STATUS, count=None)
    found = (await world.state())["ejections"]
    while not found["overridden"]:
        assert (await world.complete()).text == Shape().expected()
        found = (await world.state())["ejections"]
    assert found == ejections(consecutive_errors=1, overridden=1)
    for engine in world.prefill:
        engine.faults.clear()
    await world.warm()


async def test_the_last_decode_serves_while_it_is_suspect(order: Order, make_world: MakeWorld) -> None:
    """After one lost connection the gateway must not refuse all clients until the warm-up is over."""
    world = await make_world(order, d={"prefill_base_seconds": 0.3})
    await world.complete()
    world.d.faults.add(FaultKind.DIE_BEFORE_HEAD, count=2, leg=None)
    first = asyncio.create_task(world.complete(n=2))
    await eventually(lambda: world.endpoint(world.d).state is State.SUSPECT)
    assert (await world.call("GET", f"{world.url}/ready")).status == 200
    replies = await asyncio.gather(*(world.complete() for _ in range(3)))  # a fourth would wait until D is warm
    assert [reply.text for reply in replies] == [Shape().expected()] * 3
    assert (await first).status == 200
    assert await world.outcomes() == {"split": 1, "whole": 4}, "remote KV must not be the first work of an engine"
    await world.warm()
    assert (await world.complete()).text == Shape().expected()
    assert (await world.outcomes())["split"] == 2
    assert (await world.state())["ejections"]["lost"] == 1


async def test_a_suspect_that_fails_its_warm_up_is_cold(make_world: MakeWorld) -> None:
    world = await make_world(PULL, 0, 1)
    await world.d.kill()
    assert (await world.complete()).status == 503
    await eventually(lambda: world.endpoint(world.d).state is State.COLD)
    assert (await world.call("GET", f"{world.url}/ready")).status == 503
    await world.d.restart()
    await world.warm()


@pytest.mark.parametrize("push", [Order.DECODE_FIRST, Order.CONCURRENT])
async def test_blocks_that_a_decode_has_lost_are_reported(push: Order, make_world: MakeWorld) -> None:
    """P dies for good while D waits. A restart of D resets the count."""
    world = await make_world(push, 1, 1, p={"prefill_base_seconds": 0.5}, deadlines=SHORT)
    world.allowed.stranded = True
    request = asyncio.create_task(world.complete())
    await eventually(lambda: world.p.counts.running_now and world.d.counts.legs["decode"] == 2)
    await world.p.kill()
    assert (await request).text == Shape().expected()
    name = world.endpoint(world.d).name
    assert (await world.settlements())["decode_lost"] == 1
    assert (await _described(world, world.d))["lostHandoffs"] == 1
    assert await _metric(world, f'pdx_decode_kv_leaked{{endpoint="{name}"}}') == "1.0"
    assert world.worker._engines.load.of(world.endpoint(world.d)) == 1, "it counts as a leg in flight"
    await world.d.kill()
    assert (await world.complete()).status == 503
    await eventually(lambda: world.endpoint(world.d).state is State.COLD)
    await world.d.restart()
    await eventually(lambda: world.endpoint(world.d).warm)
    assert (await _described(world, world.d))["lostHandoffs"] == 0
    assert await _metric(world, "pdx_decode_kv_leaked{") == "0.0"


async def test_an_engine_that_comes_back_starts_slowly(make_world: MakeWorld) -> None:
    world = await make_world(PULL, 0, 2, d={"decode_token_seconds": 0.02}, health=Health(slow_start_seconds=0.6))
    load = world.worker._engines.load
    assert not load.effective_loads, "engines that start together share evenly"
    await asyncio.sleep(0.6)  # from then on the other engine is not new
    await world.d.kill()
    assert (await world.complete(tokens=2)).status == (await world.complete(tokens=2)).status == 200
    await world.d.restart()
    await world.warm()
    assert list(load.effective_loads) == [world.endpoint(world.d).name]
    requests = [asyncio.create_task(world.complete(tokens=20)) for _ in range(4)]
    await eventually(lambda: sum(load.view().values()) == 4)
    assert load.view().get(world.endpoint(world.d).name, 0) < 2
    await asyncio.gather(*requests)
    await eventually(lambda: load.of(world.endpoint(world.d)) == 0, what="its whole share")
