"""The gateway, an engine's pod, an engine or a worker ends while requests are in each phase."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from pdx_api.names import Order
from tests.component.changing import Changing, MakeChanging
from tests.component.conftest import MakeWorld
from tests.component.harness import Reply, Shape, World, eventually

PHASES = ["prefill", "decode", "answer"]
PUSH = [Order.DECODE_FIRST, Order.CONCURRENT]
SLOW: dict[str, dict[str, Any]] = {
    "prefill": {"prefill_base_seconds": 0.3},
    "decode": {"transfer_seconds": 0.3},
    "answer": {"decode_token_seconds": 0.02},
}
"""Settings that make a phase last."""


@pytest.fixture(params=[Shape(), Shape(stream=True)], ids=["text", "text-stream"])
def form(request: pytest.FixtureRequest) -> Shape:
    return Shape(stream=request.param.stream)


def _reached(world: World, phase: str) -> Callable[[], bool]:
    """Whether a request is in this phase, according to the engines."""
    finished = sum(e.counts.prefills_finished for e in world.prefill)
    tokens = sum(e.counts.generation_tokens for e in world.decode)

    def reached() -> bool:
        if phase == "prefill":
            return any(e.counts.running_now for e in world.prefill)
        if phase == "decode":
            return sum(e.counts.prefills_finished for e in world.prefill) > finished
        return sum(e.counts.generation_tokens for e in world.decode) > tokens + 2

    return reached


async def _begin(world: World, form: Shape, phase: str, tokens: int = 20) -> "asyncio.Task[Reply]":
    reached = _reached(world, phase)
    task = asyncio.create_task(world.complete(form, tokens=tokens))
    await eventually(reached, what=phase)
    return task


@pytest.mark.parametrize("phase", PHASES)
async def test_the_gateway_finishes_what_runs(phase: str, order: Order, form: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, sim=SLOW[phase])
    task = await _begin(world, form, phase)
    gateway, world.control = world.gateway, None
    await gateway.stop()
    reply = await task
    assert (reply.status, reply.text) == (200, form.expected(tokens=20))
    await world.call("GET", f"{world.d.url}/health")
    assert [engine.counts.blocks_held_now for engine in world.engines] == [0, 0]
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection(gateway.listen.host, gateway.listen.port)


async def test_the_gateway_waits_no_longer_than_its_grace_period(
    order: Order, form: Shape, make_world: MakeWorld
) -> None:
    world = await make_world(order, d={"decode_token_seconds": 0.02}, shutdown_seconds=0.1)
    task = await _begin(world, form, "answer", tokens=500)
    gateway, world.control = world.gateway, None
    async with asyncio.timeout(3):
        await gateway.stop()
        outcome = await asyncio.gather(task, return_exceptions=True)
    if form.stream:
        assert isinstance(outcome[0], Reply)
        assert outcome[0].done
        assert outcome[0].chunks[-1]["error"]["code"] == 503
    else:
        assert isinstance(outcome[0], aiohttp.ClientError), "nothing had been answered, and nothing is"
    await eventually(lambda: not world.d.counts.running_now)


@pytest.mark.parametrize("phase", PHASES)
async def test_a_pair_that_is_deleted_finishes_what_it_has(
    phase: str, order: Order, form: Shape, make_changing: MakeChanging
) -> None:
    """Meanwhile new requests go to the other pair; no leg is retried."""
    world: Changing = await make_changing(order, "prefill-a-0", "decode-a-0", sim=SLOW[phase])
    task = await _begin(world, form, phase)
    await asyncio.gather(world.add("prefill-a-1"), world.add("decode-a-1"))
    for name in ("prefill-a-0", "decode-a-0"):
        world.pods.change(name, leaving=True)
    reply = await task
    assert (reply.status, reply.text) == (200, form.expected(tokens=20))
    assert await world.outcomes() == {"split": 1}
    assert world.report["retries"] == {}
    await world.all_warm_but("prefill-a-0", "decode-a-0")
    reply = await world.complete(form)
    assert (reply.headers["x-pdx-prefill"], reply.headers["x-pdx-decode"]) == ("prefill-a-1", "decode-a-1")


@pytest.mark.parametrize("push", PUSH)
async def test_a_prefill_that_dies_for_good_is_counted_against_its_decode(
    push: Order, form: Shape, make_world: MakeWorld
) -> None:
    """Push: D's blocks stay until it restarts, and the gateway reports which D has lost some."""
    world = await make_world(push, p={"prefill_base_seconds": 0.3})
    task = await _begin(world, form, "prefill")
    await eventually(lambda: world.d.counts.waiting_now or world.d.counts.blocks_held_now)
    await world.p.kill()
    reply = await task
    assert (reply.status, reply.text) == (200, form.expected(tokens=20))
    assert await world.outcomes() == {"whole": 1}
    assert await world.settlements() == {"decode_lost": 1}
    assert world.report["retries"] == {"lost": 1}
    await eventually(lambda: world.d.counts.blocks_stranded_now > 0)
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    assert f'pdx_decode_kv_leaked{{endpoint="{world.endpoint(world.d).name}"}} 1.0' in page
    await world.d.restart()
    assert world.d.counts.blocks_held_now == 0
    await world.p.restart()
    await world.warm()
    assert (await world.complete(form)).text == form.expected()


@pytest.mark.parametrize("push", PUSH)
async def test_a_prefill_that_dies_behind_its_answer(push: Order, form: Shape, make_world: MakeWorld) -> None:
    """Push: only the loss of P's connection shows that D waits for nothing."""
    world = await make_world(push, p={"transfer_seconds": 1.0})
    task = await _begin(world, form, "decode")
    await asyncio.sleep(0.05)  # P's answer is here
    await world.p.kill()
    async with asyncio.timeout(3):
        reply = await task
    assert (reply.status, reply.text) == (200, form.expected(tokens=20))
    assert await world.outcomes() == {"whole": 1}
    assert await world.settlements() == {"decode_lost": 1}
    assert world.report["retries"] == {"lost": 1}
    world.allowed.stranded = True
    await world.p.restart()
    await world.warm()


@pytest.mark.parametrize("push", PUSH)
async def test_a_prefill_that_closes_an_idle_connection_lives(push: Order, form: Shape, make_world: MakeWorld) -> None:
    """Push: it does so while D waits for its KV."""
    world = await make_world(push, p={"transfer_seconds": 1.0, "keepalive_seconds": 0.2})
    reply = await world.complete(form, tokens=20)
    assert (reply.status, reply.text) == (200, form.expected(tokens=20))
    assert await world.outcomes() == {"split": 1}
    assert world.report["retries"] == {}
    assert await world.settlements() == {}


async def test_an_engine_that_shuts_down_aborts(order: Order, form: Shape, make_world: MakeWorld) -> None:
    """vLLM ends what it answers with the finish reason "abort". In a stream that has begun it goes on as it came."""
    world = await make_world(order, d={"decode_token_seconds": 0.02})
    task = await _begin(world, form, "answer", tokens=100)
    await world.d.stop()
    reply = await task
    if form.stream:
        assert reply.done
        assert reply.chunks[-1]["choices"][0]["finish_reason"] == "abort"
        assert form.expected(tokens=100).startswith(reply.text)
        assert await world.outcomes() == {"split": 1}
    else:
        assert reply.text == form.expected(tokens=100)  # the only D is gone, so P serves the request
        assert await world.outcomes() == {"whole": 1}
        assert world.report["retries"]["abort"] == 1
    await world.d.restart()
    await world.warm()
