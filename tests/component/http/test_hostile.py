"""Hostile input: a clear refusal or a correct answer. A refused request reaches no engine; both servers agree."""

import asyncio
import json
import logging
import os
import random
import time

import pytest

from pdx_api.names import Order
from pdx_sim import SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import World
from tests.component.http import hostile
from tests.component.http.random_requests import random_input

_SEEN_HEADERS = {"host", "content-type", "content-length", "x-request-id", "traceparent", "tracestate", "authorization"}
_MAY_BE_REFUSED = {"trailer", "upgrade", "lone-surrogate", "huge-number", "huge-exponent", "answer-only", "xargs-large"}
_CLEAR = {200, 307, 400, 404, 405, 408, 413, 415, 417, 431}


def _requests(world: World) -> int:
    return sum(engine.counts.requests.total() for engine in world.engines)


def _check_engines(world: World) -> None:
    """No request since the last check contains anything forbidden; then forget them."""
    for engine in world.engines:
        for each in engine.seen:
            split = each.body.get("kv_transfer_params") is not None
            assert not hostile.forbidden_in(each.raw, split=split), each.raw
            assert "evil" not in each.headers["x-request-id"]
            assert each.headers.keys() <= _SEEN_HEADERS
            if split:
                assert "evil" not in json.dumps(each.body["kv_transfer_params"])
        _forget(engine)


def _forget(engine: SimEngine) -> None:
    engine.seen.clear()


@pytest.fixture
async def world(order: Order, make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> World:
    return await _make(order, make_world, caplog)


async def _make(order: Order, make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.WARNING)
    world = await make_world(order)
    for engine in world.engines:
        _forget(engine)
    return world


async def _finish(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """No line in any log, and no failure that hostile input would explain."""
    assert not caplog.records, [record.getMessage() for record in caplog.records]
    outcomes = await world.outcomes()
    assert not {"unavailable", "broken", "shed"} & outcomes.keys(), outcomes
    world.sent = sum(outcomes.values())


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "fallback"])
async def test_refused_requests(world: World, fast: bool, caplog: pytest.LogCaptureFixture) -> None:
    before = _requests(world)
    outcomes = await hostile.exchange_all(world, list(hostile.REFUSED.values()), fast=fast)
    wrong = {
        name: outcome
        for name, outcome in zip(hostile.REFUSED, outcomes, strict=True)
        if len(outcome.statuses) != 1 or not 400 <= outcome.statuses[0] < 500
    }
    assert not wrong
    for outcome in outcomes:
        assert json.loads(outcome.bodies[0])["error"]["code"] == outcome.statuses[0]
    assert _requests(world) == before
    await _finish(world, caplog)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "fallback"])
async def test_unusual_requests(world: World, fast: bool, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = await hostile.exchange_all(world, list(hostile.SERVED.values()), fast=fast)
    found = {name: outcome.statuses for name, outcome in zip(hostile.SERVED, outcomes, strict=True)}
    assert not {name: statuses for name, statuses in found.items() if statuses not in {(200,), (400,)}}
    assert {name for name, statuses in found.items() if statuses == (400,)} <= _MAY_BE_REFUSED
    _check_engines(world)
    await _finish(world, caplog)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "fallback"])
async def test_other_targets(world: World, fast: bool, caplog: pytest.LogCaptureFixture) -> None:
    before = _requests(world)
    outcomes = await hostile.exchange_all(world, [data for data, _ in hostile.OTHERS.values()], fast=fast)
    found = {name: list(outcome.statuses) for name, outcome in zip(hostile.OTHERS, outcomes, strict=True)}
    assert found == {name: statuses for name, (_, statuses) in hostile.OTHERS.items()}
    assert _requests(world) == before
    await _finish(world, caplog)


async def _fuzz(world: World, seed: int, seconds: float, batch: int = 50) -> int:
    """Random connections through both servers for `seconds`; return how many."""
    rng = random.Random(seed)
    ends = time.monotonic() + seconds
    count = 0
    while time.monotonic() < ends:
        inputs = [random_input(rng) for _ in range(batch)]
        fast = await hostile.exchange_all(world, inputs, fast=True)
        slow = await hostile.exchange_all(world, inputs, fast=False)
        for data, one, other in zip(inputs, fast, slow, strict=True):
            assert set(one.statuses) <= _CLEAR, (data, one)
            assert one.agrees(other, data), (data, one, other)
        _check_engines(world)
        count += batch
    return count


async def test_random_input(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    """PDX_FUZZ_SEED repeats a run, PDX_FUZZ_SECONDS makes it longer. The seed chooses the order too."""
    seed = int(os.environ.get("PDX_FUZZ_SEED", random.randrange(1 << 32)))
    print(f"PDX_FUZZ_SEED={seed}")  # noqa: T201 (shown when it fails)
    world = await _make(list(Order)[seed % len(Order)], make_world, caplog)
    count = await _fuzz(world, seed, float(os.environ.get("PDX_FUZZ_SECONDS", "8")))
    print(f"{count} connections to each server")  # noqa: T201
    assert count >= 100
    await _finish(world, caplog)


@pytest.mark.soak
async def test_random_input_for_long(world: World, caplog: pytest.LogCaptureFixture) -> None:
    seed = random.randrange(1 << 32)
    print(f"PDX_FUZZ_SEED={seed}")  # noqa: T201
    await _fuzz(world, seed, 600.0)
    await _finish(world, caplog)


async def test_large_heads_and_many_bytes_are_bounded(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An endless head is refused once it is too long, whichever part of it is long."""

    async def flood(begin: bytes, piece: bytes) -> int:
        reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
        writer.write(begin)
        sent = 0
        try:
            while sent < 16 << 20 and not reader.at_eof():
                writer.write(piece * (65536 // len(piece)))
                sent += 65536
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()
        return sent

    for begin, piece in (
        (hostile.HEAD + b"X: ", b"y"),
        (hostile.HEAD, b"X-A: y\r\n"),
        (b"GET /", b"y"),
        (hostile.framed(hostile.GOOD)[:-2], b"X-T: y\r\n"),
    ):
        sent = await flood(begin, piece)
        assert sent < 8 << 20, (begin[-30:], piece, sent)
    await _finish(world, caplog)
