"""Requests whose clients hang up at random, in each order: 2,000 always, 50,000 in `make soak`."""

import asyncio
import datetime
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from pdx_api.names import Order
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually

AT_ONCE = 16
RESULTS = Path(__file__).parents[2] / "benchmarks/soak/hang-ups.jsonl"
LONG = 50_000


async def _one(world: World, number: int, rng: random.Random) -> str:
    """One client; what became of it, as it sees it."""
    shape = Shape(chat=rng.random() < 0.5, stream=rng.random() < 0.5)
    prompt = f"{number} " + "x" * rng.randrange(10, 3000)
    tokens = rng.randrange(1, 30)
    patience = rng.uniform(0.0, 0.16) if rng.random() < 0.5 else None
    task = asyncio.create_task(world.ask(shape, prompt=prompt, tokens=tokens))
    done, _ = await asyncio.wait([task], timeout=patience)
    if not done:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "left"
    reply = task.result()
    assert (reply.status, reply.text) == (200, shape.expected(prompt, tokens))
    return "answered"


@pytest.mark.parametrize("requests", [2000, pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
async def test_hang_ups(order: Order, make_world: MakeWorld, requests: int) -> None:
    timings = {"prefill_base_seconds": 0.03, "decode_token_seconds": 1e-3, "jitter": 0.5, "prefill_slots": 16}
    world = await make_world(order, 2, 2, sim={**timings, "lease_seconds": 5.0})
    world.allowed.expired = True
    world.allowed.orphan_tokens = requests
    rng = random.Random(7)
    gate = asyncio.Semaphore(AT_ONCE)

    async def client(number: int) -> str:
        async with gate:
            return await _one(world, number, rng)

    seen = Counter(await asyncio.gather(*(client(number) for number in range(requests))))
    assert min(seen["left"], seen["answered"]) > requests / 10, seen
    await eventually(lambda: not any(world.report["inFlight"].values()), 15.0, "all settled")
    report = world.report
    # a client that left before its request was read was never there
    left, answered = report["outcomes"]["client_left"], report["outcomes"]["split"] + report["outcomes"]["whole"]
    assert seen["answered"] <= answered <= requests - left
    assert seen["left"] >= left
    world.sent = left + answered
    assert report["outcomes"]["whole"] < requests / 100, report["retries"]
    assert sum(report["outcomes"].values()) == world.sent
    await eventually(lambda: not any(e.counts.blocks_held_now for e in world.engines), 8.0, "nothing held")
    finished = sum(engine.counts.prefills_finished for engine in world.prefill)
    expired = sum(engine.counts.expired for engine in world.prefill)
    stranded = sum(engine.counts.blocks_stranded_now for engine in world.decode)
    assert expired < finished / 100, (expired, finished, report["settlements"])
    assert stranded == 0
    assert sum(engine.counts.orphan_tokens for engine in world.decode) <= seen["left"] * 2
    if requests == LONG:
        _record(order, {"clients": seen, "leasesExpired": expired, "settlements": report["settlements"]})


def _record(order: Order, result: dict[str, object]) -> None:
    """Add a dated line to the committed results."""
    line = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "order": order, **result}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as results:
        results.write(json.dumps(line) + "\n")
