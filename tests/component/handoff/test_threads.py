"""Cases from public threads about other gateways and vLLM, each on the whole path."""

import asyncio
from collections import Counter

import pytest

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Choosing
from pdx_proxy.config.settings import Deadlines
from pdx_proxy.health import engine_scraper
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually

PUSH = [order for order in Order if order is not Order.PREFILL_FIRST]
AT_ONCE = 128
STREAM = Shape(stream=True)


@pytest.mark.parametrize("order", PUSH)
async def test_many_pushes_at_once_lose_no_lease(order: Order, make_world: MakeWorld) -> None:
    """vllm#53095: D does not renew P's lease while a leg is in its queue, so no leg may be there for that long."""
    slow = {"prefill_token_seconds": 2e-5, "lease_seconds": 3.0}
    world = await make_world(order, p=slow, d={"max_running": 8, "decode_token_seconds": 5e-3, "lease_seconds": 3.0})
    bodies = [f"{n} {'What is this? ' * 40}" for n in range(AT_ONCE)]
    replies = await asyncio.gather(*(world.complete(prompt=prompt, tokens=40) for prompt in bodies))
    assert Counter(reply.status for reply in replies) == {200: AT_ONCE}
    shape = Shape()
    assert [reply.text for reply in replies] == [shape.expected(prompt, 40) for prompt in bodies]
    assert (world.p.counts.expired, world.d.counts.blocks_stranded_now) == (0, 0)


async def test_a_client_that_leaves_during_a_transfer_frees_no_block_in_use(
    order: Order, make_world: MakeWorld
) -> None:
    """vllm#56089: blocks were freed under a transfer. The simulator reports a transfer into blocks that are free."""
    world = await make_world(order, sim={"transfer_seconds": 0.3}, deadlines=Deadlines(nearly_done=0.1))
    task = asyncio.create_task(world.complete(STREAM))
    await eventually(lambda: world.d.counts.loading_now and not world.p.counts.running_now, what="KV is on its way")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    reply = await world.complete(STREAM, prompt="After it, another. " * 40)
    assert (reply.status, reply.text) == (200, STREAM.expected("After it, another. " * 40))


@pytest.mark.parametrize("status", [400, 500])
async def test_a_prefill_that_fails_leaves_no_decode_waiting(status: int, order: Order, make_world: MakeWorld) -> None:
    """llm-d#2433: P answered an error while D waited, and the client hung."""
    world = await make_world(order, debug_headers=True)
    world.fault(world.p, FaultKind.STATUS, status=status)
    world.allowed.stranded = status == 400 and not world.pull  # no second leg wakes D, as docs/settling.md states
    async with asyncio.timeout(10):
        reply = await world.complete(STREAM)
    assert (reply.status, reply.done, reply.text) == (200, True, STREAM.expected())
    await eventually(lambda: not world.d.counts.running_now + world.d.counts.waiting_now)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_an_engine_without_metrics_is_not_idle(
    role: Role, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dynamo#14575: an engine whose metrics page fails had "no load", and got all requests."""
    monkeypatch.setattr(engine_scraper, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(engine_scraper, "OLDEST_SECONDS", 0.2)
    world = await make_world(Order.PREFILL_FIRST, 2, 2, choosing=Choosing(), debug_headers=True, sim=_SLOW)
    engine = world.p if role is Role.PREFILL else world.d
    monkeypatch.setattr(engine, "metrics", _fail)
    await eventually(lambda: not _reported(world, role), what="the report is too old")
    replies = await asyncio.gather(*(world.complete(STREAM, prompt=f"{n} {'?' * 900}", tokens=30) for n in range(20)))
    called = Counter(reply.headers[f"x-pdx-{role}"] for reply in replies)
    assert called.total() == 20
    assert called[world.endpoint(engine).name] <= 18, called


_SLOW = {"prefill_token_seconds": 2e-5, "decode_token_seconds": 2e-3}


def _fail() -> str:
    raise RuntimeError("the page fails")


def _reported(world: World, role: Role) -> bool:
    engine = world.p if role is Role.PREFILL else world.d
    return world.endpoint(engine).name in world.worker._serving.load_reports.engines
