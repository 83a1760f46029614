"""P's lease while D queues: pull renews it by heartbeats, push does not."""

import asyncio
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_sim import expected_text, tokenize
from tests.component.sim.conftest import PROMPT, MakePair, Pair, hang_up, until

STEPS = {"step_seconds": 1e-3, "step_sequence_seconds": 1e-5, "step_token_seconds": 1e-6}
FULL = {"max_running": 1, "decode_token_seconds": 0.01}


@pytest.fixture(params=[{}, STEPS], ids=["simple", "steps"])
def timing(request: pytest.FixtureRequest) -> dict[str, float]:
    return dict(request.param)


async def busy(pair: Pair) -> "asyncio.Task[Any]":
    """A request that takes D's only place."""
    task: asyncio.Task[Any] = asyncio.create_task(pair.post(pair.d, "busy", max_tokens=3000, prompt="x"))
    await until(lambda: pair.d.counts.running_now)
    return task


async def queue(pair: Pair, params: Any) -> "asyncio.Task[Any]":
    """A leg that waits in D's queue."""
    task: asyncio.Task[Any] = asyncio.create_task(pair.decode(params))
    await until(lambda: pair.d.counts.waiting_now)
    return task


async def beat(pair: Pair) -> None:
    """Two heartbeats of D, of which the first only shakes hands."""
    for now in (1e12, 2e12):
        pair.d.connector.tick(now)
        await until(lambda: not pair.d.connector._tasks._tasks)
    assert pair.p.counts.handshakes == 1


async def test_pull_renews_the_lease_while_the_leg_is_queued(make_pair: MakePair, timing: dict[str, float]) -> None:
    pair = await make_pair(**timing, decode=FULL)
    first = await busy(pair)
    queued = await queue(pair, (await pair.prefill()).params)
    await beat(pair)
    assert (pair.p.counts.heartbeats, pair.p.counts.pulled, pair.d.counts.loading_now) == (1, 0, 0)
    await hang_up(first)
    assert (await queued).text == expected_text(tokenize(PROMPT), 5)
    await until(pair.is_clean)
    await beat_again(pair)
    assert pair.p.counts.heartbeats == 1, "the leg has its KV"


async def beat_again(pair: Pair) -> None:
    """A heartbeat after the others."""
    pair.d.connector.tick(3e12)
    await until(lambda: not pair.d.connector._tasks._tasks)


async def test_pull_releases_the_blocks_of_a_leg_that_ends_in_the_queue(
    make_pair: MakePair, timing: dict[str, float]
) -> None:
    pair = await make_pair(**timing, decode=FULL)
    first = await busy(pair)
    queued = await queue(pair, (await pair.prefill()).params)
    await hang_up(queued)
    await until(lambda: pair.p.counts.released)
    assert pair.p.counts.blocks_held_now == 0
    await hang_up(first)


async def test_push_does_not_renew_the_lease_while_the_leg_is_queued(
    make_pair: MakePair, timing: dict[str, float]
) -> None:
    pair = await make_pair(Order.CONCURRENT, **timing, decode=FULL)
    first = await busy(pair)
    queued = await queue(pair, pair.decode_params())
    await pair.prefill()
    await beat(pair)
    assert (pair.p.counts.heartbeats, pair.p.counts.blocks_pinned_now) == (0, 44)
    pair.p.end_leases()
    await hang_up(first)
    await until(lambda: pair.p.counts.registered_now)
    assert not queued.done(), "P has freed the blocks, and D waits in vain"
    await hang_up(queued)


async def test_push_does_not_notify_p_of_a_leg_that_ends_in_the_queue(
    make_pair: MakePair, timing: dict[str, float]
) -> None:
    pair = await make_pair(Order.CONCURRENT, **timing, decode=FULL)
    first = await busy(pair)
    queued = await queue(pair, pair.decode_params())
    await pair.prefill()
    await hang_up(queued)
    await until(lambda: not pair.d.counts.waiting_now)
    await hang_up(first)
    assert (pair.p.counts.blocks_pinned_now, pair.d.counts.blocks_stranded_now) == (44, 0)
