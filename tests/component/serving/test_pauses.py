"""Engines that live and accept no request: paused (vLLM 0.33), while ranks are added, and retired ranks."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from pdx_api.names import Order
from pdx_proxy.config.settings import Health, Retries
from pdx_proxy.endpoints.events import HealthCheckRequest
from pdx_proxy.health import engine_scraper, progress
from pdx_sim import FaultKind, SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import AGENT_SHAPES, SHORT, Reply, Shape, World, eventually

REFUSES = {"version": "0.33.0"}
QUEUES = {"version": "0.32.0"}
NO_RETRIES = {"retries": Retries(budget_percent=0, min_retries=0)}
"""A budget that has nothing."""


async def pause(world: World, engine: SimEngine, mode: str = "wait") -> None:
    assert (await world.call("POST", f"{engine.url}/pause?mode={mode}")).json == {"status": "paused"}


async def resume(world: World, engine: SimEngine) -> None:
    assert (await world.call("POST", f"{engine.url}/resume")).json == {"status": "resumed"}
    await eventually(lambda: world.endpoint(engine).warm, what="warm again")


TEXT = Shape()


def right(reply: Reply, number: int, shape: Shape = TEXT) -> bool:
    return (reply.status, reply.text) == (200, shape.expected(f"prompt {number}"))


async def is_left_out(world: World, engine: SimEngine, state: str = "Paused") -> dict[str, Any]:
    """Wait until the gateway says so, and check that nothing counts against the engine, also after a warm-up."""
    await eventually(lambda: world.endpoint(engine).state == state, what=state)
    await asyncio.sleep(0.5)
    assert world.endpoint(engine).state == state
    described = await world.state()
    assert not any(described["ejections"].values()), described["ejections"]
    found = [each for each in described["endpoints"] if each["name"] == world.endpoint(engine).name]
    assert (found[0]["state"], found[0]["ejections"]) == (state, 0)
    return dict(found[0])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_another_decode_serves_meanwhile(stream: bool, order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, decode=2, sim=REFUSES, **NO_RETRIES)
    await pause(world, world.d)
    shape = Shape(stream=stream)
    for number in range(6):
        assert right(await world.complete(shape, prompt=f"prompt {number}"), number, shape)
    assert "POST /resume" in (await is_left_out(world, world.d))["reason"]
    assert await world.outcomes() == {"split": 6}
    await resume(world, world.d)


async def test_an_engine_that_is_resumed_gets_requests_again(make_world: MakeWorld) -> None:
    sim, health = {**REFUSES, "lease_seconds": 1.5}, Health(slow_start_seconds=0.0)
    world = await make_world(Order.PREFILL_FIRST, decode=2, sim=sim, health=health)
    world.allowed.expired = True  # a D that is paused lets P keep its blocks
    for engine in world.decode:
        await pause(world, engine)
    assert (await world.complete()).status == 503
    await is_left_out(world, world.d)
    for engine in world.decode:
        await resume(world, engine)
    before = [engine.counts.requests.total() for engine in world.decode]
    for number in range(6):
        assert right(await world.complete(prompt=f"prompt {number}"), number)
    assert all(engine.counts.requests.total() > count for engine, count in zip(world.decode, before, strict=True))


async def test_another_prefill_serves_meanwhile(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, prefill=2, sim=REFUSES, **NO_RETRIES)
    world.allowed.stranded = True  # by a P that refuses every leg
    await pause(world, world.p)
    for number in range(6):
        assert right(await world.complete(prompt=f"prompt {number}"), number)
    await is_left_out(world, world.p)
    await resume(world, world.p)


async def test_decode_serves_alone_while_every_prefill_is_paused(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, sim=REFUSES, **NO_RETRIES)
    world.allowed.stranded = True
    await pause(world, world.p)
    for number in range(3):
        assert right(await world.complete(prompt=f"prompt {number}"), number)
    await is_left_out(world, world.p)
    assert await world.outcomes() == {"whole": 3}
    await resume(world, world.p)
    assert right(await world.complete(prompt="prompt 9"), 9)
    assert (await world.outcomes())["split"] == 1


async def test_clients_are_told_while_all_are_paused(shape: Shape, order: Order, make_world: MakeWorld) -> None:
    """First the engine's own answer, then the gateway's."""
    await check_answers(shape, await make_world(order, sim={**REFUSES, "lease_seconds": 1.5}))


@pytest.mark.parametrize("agent", AGENT_SHAPES[:2], ids=lambda shape: shape.label)
async def test_anthropics_clients_are_told(agent: Shape, make_world: MakeWorld) -> None:
    await check_answers(agent, await make_world(Order.PREFILL_FIRST, sim={**REFUSES, "lease_seconds": 1.5}))


async def check_answers(shape: Shape, world: World) -> None:
    world.allowed.expired = world.allowed.stranded = True
    await pause(world, world.d)
    reply = await world.complete(shape)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.error["message"] == "Generation is paused. Please retry after it resumes."
    await is_left_out(world, world.d)
    reply = await world.complete(shape)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    await resume(world, world.d)
    assert (await world.complete(shape)).text == shape.expected()


async def test_a_stream_of_a_response_does_not_say_it(make_world: MakeWorld) -> None:
    """vLLM closes its connection, so a health check follows, and the engine is asked."""
    world = await make_world(Order.PREFILL_FIRST, decode=2, sim=REFUSES)
    await pause(world, world.d)
    shape = AGENT_SHAPES[-1]
    for number in range(6):
        assert right(await world.complete(shape, prompt=f"prompt {number}"), number, shape)
    await is_left_out(world, world.d)


async def test_vllm_032_queues_while_it_is_paused(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, sim=QUEUES)
    await pause(world, world.d)
    reply = asyncio.ensure_future(world.complete())
    await eventually(lambda: world.d.counts.held_back_now, what="queued")
    assert world.endpoint(world.d).warm
    await resume(world, world.d)
    assert (await reply).text == TEXT.expected()


@pytest.mark.parametrize(("version", "mode"), [("0.32.0", "wait"), ("0.32.0", "keep"), ("0.33.0", "keep")])
async def test_an_engine_that_queues_is_asked(version: str, mode: str, make_world: MakeWorld) -> None:
    """A request that waits too long leads to a health check, and that to the question whether the engine is paused."""
    deadlines = replace(SHORT, first_event_seconds=0.5, handoff_seconds=0.5, warm_up=0.5)
    world = await make_world(Order.PREFILL_FIRST, decode=2, sim={"version": version}, deadlines=deadlines)
    await pause(world, world.d, mode)
    for number in range(3):
        shape = Shape(stream=True)
        assert right(await world.complete(shape, prompt=f"prompt {number}"), number, shape)
    await is_left_out(world, world.d)
    await asyncio.sleep(1.0)  # warm-ups that wait too long change nothing
    await is_left_out(world, world.d)
    await resume(world, world.d)


async def test_an_engine_whose_requests_only_wait_is_asked(
    order: Order, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No deadline of a request has to pass, and requests that still arrive change nothing."""
    monkeypatch.setattr(engine_scraper, "SAMPLE_SECONDS", 0.2)
    monkeypatch.setattr(progress, "_PAUSE_SECONDS", 0.5)
    world = await make_world(order, sim=QUEUES)
    await pause(world, world.d)
    replies = [asyncio.ensure_future(world.complete())]
    while world.endpoint(world.d).state != "Paused":
        replies.append(asyncio.ensure_future(world.complete()))
        await asyncio.sleep(0.1)
        assert len(replies) < 100
    await is_left_out(world, world.d)
    assert (await world.complete()).status == 503
    await resume(world, world.d)
    statuses = {reply.status for reply in await asyncio.gather(*replies)}
    assert 200 in statuses <= {200, 503}


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
async def test_requests_that_a_pause_freezes_do_not_make_the_engine_hang(
    version: str, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_scraper, "SAMPLE_SECONDS", 0.2)
    slow = {"version": version, "decode_token_seconds": 0.02}
    world = await make_world(Order.PREFILL_FIRST, decode=2, sim=slow, health=Health(stalled_seconds=0.5))
    shape = Shape(stream=True)
    reply = asyncio.ensure_future(world.complete(shape, tokens=60))
    await eventually(lambda: any(engine.counts.running_now for engine in world.decode), what="it runs")
    [busy] = [engine for engine in world.decode if engine.counts.running_now]
    await pause(world, busy, "keep")
    await is_left_out(world, busy)
    await resume(world, busy)
    assert (await reply).text == shape.expected(tokens=60)


@pytest.mark.parametrize(("kind", "state"), [(FaultKind.SCALING, "Paused"), (FaultKind.RETIRED, "Retired")])
async def test_a_rank_that_scales_or_is_retired(
    kind: FaultKind, state: str, order: Order, make_world: MakeWorld
) -> None:
    world = await make_world(order, decode=2, sim={**REFUSES, "lease_seconds": 1.5}, **NO_RETRIES)
    world.allowed.expired = world.allowed.stranded = True
    world.d.faults.add(kind)
    assert (await world.call("GET", f"{world.d.url}/health")).status == 200
    for number in range(6):
        assert right(await world.complete(prompt=f"prompt {number}"), number)
    assert "rank" in (await is_left_out(world, world.d, state))["reason"]
    world.d.faults.clear()
    await eventually(lambda: world.endpoint(world.d).warm, what="warm again")


async def test_a_request_that_a_pause_aborts_goes_elsewhere(make_world: MakeWorld) -> None:
    """The abort looks like a shutdown, and the warm-up shows that it was none."""
    sim = {**REFUSES, "decode_token_seconds": 0.05}
    world = await make_world(Order.PREFILL_FIRST, decode=2, sim=sim)
    reply = asyncio.ensure_future(world.complete())
    await eventually(lambda: any(engine.counts.running_now for engine in world.decode), what="runs")
    (busy,) = (engine for engine in world.decode if engine.counts.running_now)
    await pause(world, busy, "abort")
    assert (await reply).text == TEXT.expected()
    await eventually(lambda: world.endpoint(busy).state == "Paused", what="Paused")
    assert world.endpoint(busy).ejected_by is None
    await resume(world, busy)


async def test_a_health_check_while_vllm_032_scales_shows_no_fault(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its middleware refuses /health as well."""

    async def health(self: Any, _request: web.Request) -> web.Response:
        return web.json_response({"error": self._host.scaling}, status=503 if self._host.scaling else 200)

    monkeypatch.setattr("pdx_sim.api.server.Api._health", health)
    world = await make_world(Order.PREFILL_FIRST, decode=2, sim=QUEUES)
    world.d.faults.add(FaultKind.SCALING)
    world.gateway.endpoint_manager.on_event(HealthCheckRequest(*world.endpoint(world.d).start))
    await is_left_out(world, world.d)
    world.d.faults.clear()
    await eventually(lambda: world.endpoint(world.d).warm, what="warm again")
