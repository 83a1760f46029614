"""Random faults and hang-ups against simulated engines: half a minute always, over an hour in `make soak`."""

import asyncio
import gc
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.soak.campaign import Plan, run
from benchmarks.soak.results import print_line, record
from pdx_api.names import Order
from pdx_proxy.config.settings import Deadlines
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually

AT_ONCE = 16
LONG = 50_000
ALWAYS = pytest.mark.timeout(180)
SOAK = [pytest.mark.soak, pytest.mark.timeout(3600)]
SECONDS = {False: 10.0, True: float(os.environ.get("SECONDS_EACH", "600"))}
"""Duration of each part of the random faults: always, and in `make soak`."""
MAY_GROW = 0.05
"""Share by which the gateway's memory may grow from minute 5 to the end."""


@pytest.mark.parametrize(
    ("order", "workers", "soak"),
    [
        # Concurrent runs what DecodeFirst runs, but for when P's leg begins.
        pytest.param(Order.PREFILL_FIRST, 1, False, marks=ALWAYS),
        pytest.param(Order.DECODE_FIRST, 2, False, marks=ALWAYS),
        *(pytest.param(order, workers, True, marks=SOAK) for order in Order for workers in (1, 2)),
    ],
)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_random_faults(order: Order, workers: int, soak: bool, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    ledger = await run(Plan(order, SECONDS[soak], seed, workers), tmp_path / "gateway.log")
    gc.collect()  # a simulated engine that is killed may drop a connection that it was just accepting
    print_line("faults", ledger.line())
    grown = ledger.memory["end"] / ledger.memory["early"] - 1
    outcomes = ledger.state["outcomes"]
    ledger.expect(SECONDS[soak] < 600 or grown < MAY_GROW, f"memory has grown: {ledger.memory}")
    ledger.expect(SECONDS[soak] < 600 or outcomes["split"] > 2 * outcomes["whole"], f"too little was split: {outcomes}")
    assert not ledger.failures, f"SEED={seed}\n" + "\n".join(ledger.failures)
    if soak:
        record("faults", ledger.line())


async def _one(world: World, number: int, rng: random.Random) -> str:
    """Run one client; return the result as the client sees it."""
    shape = Shape(chat=rng.random() < 0.5, stream=rng.random() < 0.5)
    long = 13_000 if rng.random() < 0.04 else 0
    prompt = f"{number} " + "x" * (long + rng.randrange(10, 2000))
    tokens = rng.randrange(1, 30)
    patience = rng.uniform(0.0, 0.16) if long or rng.random() < 0.5 else None
    task = asyncio.create_task(world.complete(shape, prompt=prompt, tokens=tokens))
    done, _ = await asyncio.wait([task], timeout=patience)
    if not done:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "left"
    reply = task.result()
    assert (reply.status, reply.text) == (200, shape.expected(prompt, tokens))
    return "answered"


@pytest.mark.parametrize(
    ("order", "requests"),
    [
        *(
            pytest.param(order, 1000, marks=ALWAYS, id=f"{order}-short")
            for order in (Order.PREFILL_FIRST, Order.CONCURRENT)
        ),
        *(pytest.param(order, LONG, marks=SOAK, id=f"{order}-long") for order in Order),
    ],
)
async def test_hang_ups(order: Order, make_world: MakeWorld, requests: int) -> None:
    """Fewer than 1 in 500 finished prefills wait for their lease. Long prefills are stopped if possible."""
    timings = {"prefill_base_seconds": 0.02, "prefill_token_seconds": 1e-4, "decode_token_seconds": 1e-3}
    # No engine dies here, so a late side channel still answers.
    sim = {**timings, "jitter": 0.3, "prefill_slots": 16, "lease_seconds": 5.0, "side_channel_timeout": 60.0}
    world = await make_world(order, 2, 2, sim=sim, deadlines=Deadlines(nearly_done=0.1))
    world.allowed.expired = True
    world.allowed.orphan_tokens = requests
    rng = random.Random(7)
    gate = asyncio.Semaphore(AT_ONCE)

    async def client(number: int) -> str:
        async with gate:
            return await _one(world, number, rng)

    seen = Counter(await asyncio.gather(*(client(number) for number in range(requests))))
    assert min(seen["left"], seen["answered"]) > requests / 10, seen
    await eventually(lambda: world.settled, 30.0, "all settled")
    report = world.report
    # a client that left before the gateway read its request is not counted
    left, answered = report["outcomes"]["client_left"], report["outcomes"]["split"] + report["outcomes"]["whole"]
    assert seen["answered"] <= answered <= requests - left
    assert seen["left"] >= left
    world.sent = left + answered
    assert report["outcomes"]["whole"] < requests / 100, report["retries"]
    assert sum(report["outcomes"].values()) == world.sent
    await eventually(lambda: not any(e.counts.blocks_held_now for e in world.engines), 20.0, "nothing held")
    finished = sum(engine.counts.prefills_finished for engine in world.prefill)
    expired = sum(engine.counts.expired for engine in world.prefill)
    stopped = sum(engine.counts.prefills_aborted for engine in world.prefill)
    stranded = sum(engine.counts.blocks_stranded_now for engine in world.decode)
    assert expired < max(4, finished / 500), (expired, finished, report["settlements"])
    assert (stopped > requests / 100) is world.pull, "only in pull is P stopped; in push it finishes"
    assert stranded == 0
    assert sum(engine.counts.orphan_tokens for engine in world.decode) <= seen["left"] * 2
    line = {"order": order, "clients": seen, "leasesExpired": expired, "finished": finished, "stopped": stopped}
    print_line("hang-ups", line)
    if requests == LONG:
        record("hang-ups", {**line, "settlements": report["settlements"]})
