"""Streams whose engine works and sends nothing, as with hidden reasoning: no deadline of the hand-off cuts them."""

import asyncio
from typing import Any

import aiohttp
import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Deadlines
from pdx_proxy.engines import leg
from pdx_sim import FaultKind, Leg
from tests.component.conftest import MakeWorld
from tests.component.harness import Reply, Shape, World

STREAMS = {"chat": Shape(True, True), "messages": Shape(agent="messages", stream=True)}
STREAMS["responses"] = Shape(agent="responses", stream=True)
HIDDEN: dict[str, Any] = {"include_reasoning": False, "tokens": 27}
TOKEN_SECONDS = 0.045
SHORT = Deadlines(handoff_seconds=0.5, first_event_seconds=0.7, idle_seconds=0.4)
"""All shorter than the reasoning of 24 tokens. A first token takes some milliseconds."""


def _costs(world: World, requests: int) -> None:
    """Each request has cost one prefill and one decode."""
    legs = {kind: sum(each.counts.legs.get(kind, 0) for each in world.engines) for kind in Leg}
    warm_ups = len(world.decode)
    assert legs[Leg.PREFILL] == legs[Leg.DECODE] == requests + warm_ups, legs
    assert not any(world.report["retries"].values())


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
async def test_hidden_reasoning_is_not_cut(
    stream: Shape, order: Order, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leg, "_OUTCOME_SECONDS", 0.1)
    engine = {"decode_token_seconds": TOKEN_SECONDS, "reasoning_tokens": 24}
    world = await make_world(order, 1, 1, d=engine, deadlines=SHORT)
    reply = await world.complete(stream, **HIDDEN)
    assert reply.done
    assert reply.text == stream.expected(tokens=27).removeprefix(stream.expected(tokens=24))
    assert await world.outcomes() == {"split": 1}
    _costs(world, 1)


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
async def test_a_silent_engine_that_does_nothing_is_cut(stream: Shape, make_world: MakeWorld) -> None:
    """Although the request may hide its reasoning."""
    world = await make_world(Order.PREFILL_FIRST, deadlines=Deadlines(idle_seconds=0.4))
    events = 2 if stream.agent != "responses" else 5
    world.fault(world.d, FaultKind.HANG_AFTER_HEAD, events=events)
    reply = await world.complete(stream, **HIDDEN)
    assert b"went silent" in reply.raw
    assert await world.outcomes() == {"idle": 1}


async def test_a_hung_core_is_cut(make_world: MakeWorld) -> None:
    """It reports a running request, and generates nothing."""
    engine = {"decode_token_seconds": TOKEN_SECONDS, "reasoning_tokens": 24}
    world = await make_world(Order.PREFILL_FIRST, d=engine, deadlines=Deadlines(idle_seconds=0.4))
    hidden = asyncio.create_task(world.complete(STREAMS["chat"], **HIDDEN))
    await asyncio.sleep(0.3)
    world.d.faults.add(FaultKind.HANG_CORE, seconds=3600.0)
    assert b"went silent" in (await hidden).raw
    world.d.faults.clear()
    assert await world.outcomes() == {"idle": 1}


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [30, 120, 700])
async def test_hidden_reasoning_passes_with_default_settings(seconds: int, order: Order, make_world: MakeWorld) -> None:
    """Beside the same request to D itself."""
    engine = {"decode_token_seconds": 1.0, "reasoning_tokens": seconds}
    world = await make_world(order, d=engine, deadlines=Deadlines())
    await world.session.close()
    world.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)
    hidden: dict[str, Any] = {"include_reasoning": False, "tokens": seconds + 4}
    shapes = list(STREAMS.values())
    split: list[Reply] = await asyncio.gather(
        *(world.complete(shape, **hidden) for shape in shapes),
        *(world.direct(world.d, shape, **hidden) for shape in shapes),
    )
    through, direct = split[: len(shapes)], split[len(shapes) :]
    assert [reply.text for reply in through] == [reply.text for reply in direct]
    assert all(reply.done and len(reply.text) > 0 for reply in through)
    assert await world.outcomes() == {"split": len(shapes)}
    _costs(world, len(shapes))
