"""Mooncake: a client leaves or an engine is lost, in each phase of a hand-off. Rows of docs/failure-matrix.md."""

import asyncio
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Deadlines
from tests.component.conftest import MakeWorld
from tests.component.handoff.test_endings import _begin
from tests.component.harness import PROMPT, Shape, World, eventually
from tests.failure_matrix.row import LONG, MOONCAKE_ALL, MOONCAKE_D_WAITS, MOONCAKE_P_FIRST, Wiring

MOONCAKE: dict[str, Any] = {"connector": "Mooncake"}
TTL: dict[str, Any] = {"decoder_ttl_seconds": 0.6, "lease_seconds": 0.6}
"""Short timeouts for lost blocks: they are counted, and end before the test does."""
TOKENS = 20


def _cases(*wirings: Wiring) -> pytest.MarkDecorator:
    """Each order with one form of request, alternately with and without a stream."""
    cases = [pytest.param(w.order, Shape(stream=bool(n % 2)), id=w.value) for n, w in enumerate(wirings)]
    return pytest.mark.parametrize(("order", "form"), cases)


async def _leave(world: World, task: "asyncio.Task[Any]", *, settled: int = 1) -> None:
    """The client leaves; wait until this many hand-offs are settled."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: sum(world.report["settlements"].values()) == settled, 8.0, "settled")
    await eventually(lambda: world.settled, 8.0, "nothing in flight")
    assert await world.outcomes() == {"client_left": 1}


async def _freed(world: World) -> None:
    """No P keeps a transfer ID or blocks, and no D waits."""
    counts = [engine.counts for engine in world.engines]
    await eventually(lambda: not any(c.registered_now or c.blocks_held_now for c in counts), 5.0, "all is free")


async def _served(world: World, task: "asyncio.Task[Any]", form: Shape, **outcomes: int) -> None:
    async with asyncio.timeout(8):
        reply = await task
    assert (reply.status, reply.text) == (200, form.expected(tokens=TOKENS))
    assert await world.outcomes() == outcomes


@_cases(*MOONCAKE_ALL)
async def test_a_client_that_leaves_while_prefill_computes(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """Where P goes first, no engine waits for it. A P that a D waits for may finish."""
    slow = {"prefill_token_seconds": 5e-4, "prefill_chunk": 16}
    world = await make_world(order, p=slow, deadlines=Deadlines(nearly_done=0.1), **MOONCAKE)
    await _leave(world, await _begin(world, form, "prefill"))
    decode_waits = order is not Order.PREFILL_FIRST
    assert await world.settlements() == {"finished" if decode_waits else "prefill_stopped": 1}
    await eventually(lambda: world.p.counts.prefills_aborted == (not decode_waits), what="P has stopped")
    await _freed(world)


@_cases(*MOONCAKE_P_FIRST)
async def test_a_client_that_leaves_between_the_legs(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """P has finished, and D's connection takes its time: a leg that D refuses frees P."""
    world = await make_world(order, idle_seconds=0.0, **MOONCAKE)
    connect = world.pool.connect
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(address: Any, name: str) -> Any:
        if address.port == world.d.port and not reached.is_set():
            reached.set()
            await go_on.wait()
        return await connect(address, name)

    world.pool.connect = slow  # type: ignore[method-assign]
    task = asyncio.create_task(world.complete(form, tokens=TOKENS))
    await reached.wait()
    await _leave(world, task)
    assert await world.settlements() == {"released": 1}
    await _freed(world)


@_cases(*MOONCAKE_ALL)
async def test_a_client_that_leaves_while_decode_waits(order: Order, form: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, p={"transfer_seconds": 0.3}, **MOONCAKE)
    await _leave(world, await _begin(world, form, "decode"))
    assert (await world.settlements()).keys() <= {"finished", "released"}
    await _freed(world)


@_cases(*MOONCAKE_ALL)
async def test_a_client_that_leaves_an_answer(order: Order, form: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, d={"decode_token_seconds": 0.002}, **MOONCAKE)
    task = await _begin(world, form, "answer", tokens=3000)
    await _leave(world, task, settled=0)
    await eventually(lambda: world.d.counts.aborted == 1)
    assert world.d.counts.generation_tokens < 1500


@_cases(*MOONCAKE_D_WAITS)
async def test_a_prefill_that_dies_while_decode_waits(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """D keeps its blocks until its own timeout; its leg is closed, and it serves the request alone."""
    world = await make_world(order, sim=TTL, p={"prefill_base_seconds": 0.3}, **MOONCAKE)
    world.allowed.stranded = world.allowed.expired = True
    task = await _begin(world, form, "prefill")
    await eventually(lambda: world.d.counts.blocks_held_now)
    await world.p.kill()
    await _served(world, task, form, whole=1)
    assert (await world.settlements(), world.report["retries"]) == ({"decode_lost": 1}, {"lost": 1})
    await _freed(world)
    await world.p.restart()
    await world.warm()


@_cases(*MOONCAKE_ALL)
async def test_a_prefill_that_dies_behind_its_answer(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """P is writing: only the loss of P's connection shows that D waits for nothing."""
    world = await make_world(
        order, sim=TTL, p={"transfer_seconds": 1.0, "lease_seconds": 30.0}, deadlines=LONG, **MOONCAKE
    )
    world.allowed.stranded = world.allowed.expired = True
    task = await _begin(world, form, "decode")
    await eventually(lambda: world.d.counts.loading_now, what="D loads")
    await asyncio.sleep(0.05)  # P's answer is here
    await world.p.kill()
    await _served(world, task, form, whole=1)
    assert (await world.settlements(), world.report["retries"]) == ({"decode_lost": 1}, {"lost": 1})
    await _freed(world)
    await world.p.restart()
    await world.warm()


@_cases(*MOONCAKE_ALL)
async def test_a_bootstrap_that_stops_answering(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """P still serves, but a new connection does not prove that it is the same P: another P is selected."""
    world = await make_world(order, 2, idle_seconds=0.0, **MOONCAKE)
    assert world.p._bootstrap is not None
    await world.p._bootstrap.close()
    legs = world.p.counts.legs["prefill"]
    for number in (1, 2):  # one of the two would have gone to this P
        await _served(world, asyncio.create_task(world.complete(form, tokens=TOKENS)), form, split=number)
    assert world.p.counts.legs["prefill"] == legs
    assert world.report["retries"] == {"connect": 1}
    assert "bootstrap" in str(world.endpoint(world.p).reason)


@_cases(*MOONCAKE_ALL)
async def test_a_decode_that_dies_while_it_waits(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """P may have no D to write to: its finished blocks are freed through the other D."""
    world = await make_world(order, 1, 2, sim=TTL, p={"prefill_base_seconds": 0.2}, **MOONCAKE)
    world.allowed.stranded = world.allowed.expired = True
    task = await _begin(world, form, "prefill" if order is not Order.PREFILL_FIRST else "decode")
    await eventually(
        lambda: any(PROMPT in str(seen.body) for d in world.decode for seen in d.seen), what="a D has the leg"
    )
    victim = next(d for d in world.decode if any(PROMPT in str(seen.body) for seen in d.seen))
    await victim.kill()
    await _served(world, task, form, whole=1)
    assert world.report["retries"] == {"lost": 1}
    await _freed(world)
    await victim.restart()
    await world.warm()
