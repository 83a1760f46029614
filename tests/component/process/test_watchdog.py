"""Push: the gateway gives a P up whose KV does not arrive. D never reports that on its own."""

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
    world = await make_world(push, sim=slow, deadlines=replace(SHORT, handoff=0.1, warm_up=30.0))
    starts = world.endpoint(world.p).generation
    reply = await world.complete(Shape(stream=True))
    assert (reply.status, reply.text) == (200, Shape(stream=True).expected())
    assert await world.outcomes() == {"whole": 1}
    assert await world.settlements() == {"decode_lost": 1}
    assert world.report["retries"] == {"deadline": 1}
    await eventually(lambda: world.endpoint(world.p).generation > starts, 10.0, "P is warmed anew")


@pytest.mark.parametrize("push", PUSH)
async def test_without_a_stream_the_whole_answer_has_its_own_deadline(push: Order, make_world: MakeWorld) -> None:
    slow = {"transfer_seconds": TRANSFER_SECONDS}
    world = await make_world(push, sim=slow, deadlines=replace(SHORT, handoff=0.1, first_event=20.0, warm_up=30.0))
    reply = await world.complete(Shape())
    assert (reply.status, reply.text) == (200, Shape().expected())
    assert await world.outcomes() == {"split": 1}
