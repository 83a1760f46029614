"""Warm-up: restarts, engines that start late, and engines with a wrong configuration."""

import asyncio
from dataclasses import replace

import pytest

from pdx_api.names import Order, Role
from pdx_proxy.endpoints.endpoint import State
from pdx_sim import FaultKind, SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import FAST, SHORT, Shape, World, eventually

RESTARTS = {"sim": {"lease_seconds": 2.0}, "deadlines": replace(SHORT, first_event_seconds=10.0, prefill_seconds=10.0)}
"""A D that waits for an earlier start of P must be freed by a settlement, not by a deadline."""


async def test_prefill_is_not_picked_before_its_pair(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, p={"prefill_base_seconds": 0.4}, warm=False)
    await eventually(lambda: world.gateway.registry.snapshot.decode)
    reply = await world.complete()
    assert reply.text == Shape().expected()
    assert await world.outcomes() == {"whole": 1}
    await world.warm()
    assert world.p.counts.prefills_finished == 1, "one pair warms it up"
    assert world.d.counts.prompt_tokens_external > 0
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"whole": 1, "split": 1}


async def test_prefill_waits_for_a_decode(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, gateway=False)
    world.d.faults.add(FaultKind.REFUSE)
    await world.start_gateway(warm=False)
    await eventually(lambda: world.endpoint(world.p).state is State.WARMING)
    assert world.endpoint(world.p).reason == "waits for a warm decode engine of its revision"
    assert world.p.counts.prefills_finished == 0
    await eventually(lambda: "connection refused" in str(world.endpoint(world.d).reason))
    world.d.faults.clear()
    await world.warm()
    assert (await world.complete()).text == Shape().expected()


@pytest.mark.parametrize("form", [Shape(), Shape(chat=True, stream=True)], ids=["text", "chat-stream"])
async def test_prefill_restarts(form: Shape, order: Order, make_world: MakeWorld) -> None:
    """D has an engine id that is gone. The request is answered all the same, and later ones are split again."""
    world = await make_world(order, **RESTARTS)
    world.allowed.stranded = not world.pull
    world.allowed.expired = True
    for _ in range(3):
        assert (await world.complete(form)).text == form.expected()
    before = world.endpoint(world.p)
    await world.p.restart()
    reply = await world.complete(form)
    assert (reply.status, reply.text) == (200, form.expected())
    await world.warm()
    after = world.endpoint(world.p)
    if not world.pull:
        assert after.generation == before.generation + 1
        assert after.identity is not None
        assert after.identity.engine_id == world.p.engine_id
    split = (await world.outcomes())["split"]
    assert (await world.complete(form)).text == form.expected()
    assert (await world.outcomes())["split"] == split + 1


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_an_engine_is_killed_amid_requests(role: Role, order: Order, make_world: MakeWorld) -> None:
    """No request without an event fails while another engine of the role is there."""
    slow = {"p": {"prefill_base_seconds": 0.05}, "d": {"decode_token_seconds": 0.02}}
    world = await make_world(order, 2, 2, **slow, **RESTARTS)
    world.allowed.stranded = world.allowed.expired = True
    prompts = [f"{number} is a prompt" for number in range(16)]
    tasks = [asyncio.create_task(world.complete(prompt=prompt)) for prompt in prompts]
    victim = world.p if role is Role.PREFILL else world.d
    await eventually(lambda: world.report["legs"].get(world.endpoint(victim).name, 0) >= 4)
    await victim.kill()
    replies = await asyncio.gather(*tasks)
    assert {reply.status for reply in replies} == {200}, ([reply.raw for reply in replies], world.report)
    assert [reply.text for reply in replies] == [Shape().expected(prompt) for prompt in prompts]
    await eventually(lambda: not world.endpoint(victim).warm)
    await victim.restart()
    await world.warm()
    replies = await asyncio.gather(*(world.complete(prompt=prompt) for prompt in prompts))
    assert [reply.text for reply in replies] == [Shape().expected(prompt) for prompt in prompts]


async def test_decode_restarts(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, **RESTARTS)
    world.allowed.expired = True
    for _ in range(3):
        assert (await world.complete(shape)).text == shape.expected()
    await world.d.restart()
    assert (await world.complete(shape)).text == shape.expected()
    assert (await world.outcomes()) == {"split": 4}


async def test_a_decode_that_dies_is_warmed_up_again(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, sim={"lease_seconds": 1.0}, deadlines=SHORT)
    world.allowed.expired = world.pull
    await world.d.kill()
    reply = await world.complete()
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert (await world.call("GET", f"{world.url}/ready")).status == 503
    await world.d.restart()
    await world.warm()
    assert world.endpoint(world.d).generation == 2
    assert (await world.complete()).text == Shape().expected()


async def test_prefill_without_a_connector_stays_cold(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, gateway=False)
    world.fault(world.p, FaultKind.NO_PARAMS, count=None)
    world.allowed.expired = True
    world.p.station.leases = type(world.p.station.leases)(0.2)
    await world.start_gateway(warm=False)
    await eventually(lambda: world.endpoint(world.p).reason is not None and world.endpoint(world.p).state is State.COLD)
    described = (await world.state())["endpoints"][0]
    assert described["state"] == "Cold"
    assert "answered without kv_transfer_params: is its KV connector on?" in described["reason"]
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"whole": 1}


async def test_a_prefill_that_cannot_pair_leaves_decode_warm(make_world: MakeWorld) -> None:
    """A P with another model string: D rejects its KV at every warm-up and serves on."""
    world = await make_world(Order.PREFILL_FIRST, 1, 1, p={"model": "another"}, sim={"lease_seconds": 0.5}, warm=False)
    world.allowed.expired = True
    await eventually(lambda: world.endpoint(world.p).reason is not None and world.endpoint(world.d).warm)
    start = world.endpoint(world.d).generation
    for _ in range(5):
        assert (await world.complete()).text == Shape().expected()
    await eventually(lambda: world.d.counts.load_failures > 2)
    assert world.endpoint(world.d).generation == start == 1
    assert world.endpoint(world.d).warm


async def test_decode_dies_while_prefill_is_warmed(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, 1, 2, p={"prefill_base_seconds": 0.3}, sim={"lease_seconds": 1.0}, warm=False)
    world.allowed.expired = True
    await eventually(lambda: world.p.counts.running_now)
    await world.d.kill()
    await eventually(lambda: world.gateway.registry.snapshot.prefill, 10.0, "P is warmed up with the other D")
    assert not world.endpoint(world.d).warm
    assert (await world.complete()).text == Shape().expected()
    await world.d.restart()
    await world.warm()


async def test_an_engine_that_comes_late(order: Order, make_world: MakeWorld) -> None:
    world = World(order)
    await world.start_engines([], [])
    p, d = (SimEngine(replace(FAST, role=role, order=order)) for role in (Role.PREFILL, Role.DECODE))
    await p.start()
    await d.start()
    world.prefill, world.decode = [p], [d]
    await p.stop()
    try:
        await world.start_gateway(warm=False)
        await eventually(lambda: world.gateway.registry.snapshot.decode)
        assert (await world.complete()).text == Shape().expected()
        await p.restart()
        await world.warm()
        assert (await world.complete()).text == Shape().expected()
        assert await world.outcomes() == {"whole": 1, "split": 1}
        await world.check()
    finally:
        await world.close()


async def test_only_one_revision_pairs(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, 2, 2, gateway=False)
    specs = list(world.settings().endpoints)
    specs = [replace(spec, revision="abba"[index]) for index, spec in enumerate(specs)]
    revisions = {spec.name: spec.revision for spec in specs}
    await world.start_gateway(endpoints=tuple(specs), debug_headers=True)
    for _ in range(10):
        reply = await world.complete()
        assert reply.text == Shape().expected()
        assert revisions[reply.headers["x-pdx-prefill"]] == revisions[reply.headers["x-pdx-decode"]]
    assert await world.outcomes() == {"split": 10}
