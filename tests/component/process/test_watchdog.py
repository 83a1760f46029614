"""Push: the gateway gives a P up whose KV does not arrive. D never reports that on its own."""

import asyncio
from dataclasses import replace

import pytest

from pdx_api.names import Order
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Shape, eventually

PUSH = [Order.DECODE_FIRST, Order.CONCURRENT]
TRANSFER_SECONDS = 0.6


@pytest.mark.parametrize("push", PUSH)
async def test_a_push_that_does_not_come_is_given_up(push: Order, make_world: MakeWorld) -> None:
    slow = {"transfer_seconds": TRANSFER_SECONDS}
    world = await make_world(push, sim=slow, deadlines=replace(SHORT, handoff_seconds=0.1, warm_up=30.0))
    starts = world.endpoint(world.p).generation
    reply = await world.complete(Shape(stream=True))
    assert (reply.status, reply.text) == (200, Shape(stream=True).expected())
    assert await world.outcomes() == {"whole": 1}
    assert await world.settlements() == {"decode_lost": 1}
    assert world.report["retries"] == {"deadline": 1}
    assert world.endpoint(world.p).generation == starts, "P is not to blame"
    assert world.endpoint(world.d).warm


@pytest.mark.parametrize("push", PUSH)
async def test_a_push_is_not_lost_while_decode_queues_the_request(push: Order, make_world: MakeWorld) -> None:
    """D has no free block for the request until the deadline: it holds nothing for the push, so nothing is counted."""
    d = {"num_blocks": 10, "block_size": 16, "max_model_len": 160, "decode_token_seconds": 0.04}
    world = await make_world(
        push, d=d, deadlines=replace(SHORT, handoff_seconds=0.2, first_event_seconds=20.0, warm_up=30.0)
    )
    shape = Shape(stream=True)
    prompt = "a b " * 99  # 7 blocks
    first = asyncio.create_task(world.complete(shape, prompt=prompt, tokens=50))
    await eventually(lambda: world.d.counts.running_now)
    second = await world.complete(shape, prompt=prompt + "b", tokens=4)
    assert (await first).text == shape.expected(prompt, 50)
    assert second.text == shape.expected(prompt + "b", 4)
    assert "decode_lost" not in await world.settlements()
    assert world.report["retries"] == {"deadline": 1}, "then D alone"
    assert all(world.endpoint(engine).generation == 1 for engine in world.engines), "none is ejected"


@pytest.mark.parametrize("push", PUSH)
async def test_without_a_stream_the_whole_answer_has_its_own_deadline(push: Order, make_world: MakeWorld) -> None:
    slow = {"transfer_seconds": TRANSFER_SECONDS}
    world = await make_world(push, sim=slow, deadlines=replace(SHORT, handoff_seconds=0.1, warm_up=30.0))
    reply = await world.complete(Shape())
    assert (reply.status, reply.text) == (200, Shape().expected())
    assert await world.outcomes() == {"split": 1}
