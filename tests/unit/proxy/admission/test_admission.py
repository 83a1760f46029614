"""Admission: the decision, the order of the queue, and that every permit is released once."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from pdx_proxy.admission.admission import (
    Admission,
    Permit,
    ShedError,
    Usage,
    Verdict,
    WorkerLimits,
    decide,
    retry_after,
)
from pdx_proxy.config.settings import Limits
from pdx_proxy.telemetry.counters import Counters, Phase, ShedReason

LIMITS = WorkerLimits(in_flight_per_decode=4, queued=2, buffered_bytes=100, per_client=3, queue_seconds=1.0)

DECISIONS = {
    "idle": (Usage(4), 10, 0, Verdict.SERVE),
    "last-slot": (Usage(4, in_flight=3), 10, 0, Verdict.SERVE),
    "full": (Usage(4, in_flight=4), 10, 0, Verdict.QUEUE),
    "behind-others": (Usage(4, in_flight=3, waiting=1), 10, 0, Verdict.QUEUE),
    "queue-full": (Usage(4, in_flight=4, waiting=2), 10, 0, ShedReason.QUEUE_FULL),
    "all-bytes": (Usage(4, buffered=90), 10, 0, Verdict.SERVE),
    "too-many-bytes": (Usage(4, buffered=91), 10, 0, ShedReason.BYTES),
    "large-and-alone": (Usage(4), 1000, 0, Verdict.SERVE),
    "no-body": (Usage(4, buffered=100), 0, 0, Verdict.SERVE),
    "last-of-client": (Usage(4), 10, 2, Verdict.SERVE),
    "too-many-of-client": (Usage(4), 10, 3, ShedReason.CLIENT_LIMIT),
    "client-before-overload": (Usage(4, in_flight=4, waiting=2, buffered=100), 10, 3, ShedReason.CLIENT_LIMIT),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_decide(name: str) -> None:
    usage, size, of_client, expected = DECISIONS[name]
    assert decide(LIMITS, usage, size, of_client) is expected


def test_workers_have_even_shares() -> None:
    limits = Limits(in_flight_per_decode=10, queued_requests=9, buffered_bytes=1000, requests_per_client=3)
    assert WorkerLimits.of(limits, 1) == WorkerLimits(10, 9, 1000, 3, limits.queue_seconds)
    assert WorkerLimits.of(limits, 4) == WorkerLimits(2.5, 2, 250, 1, limits.queue_seconds)
    assert [WorkerLimits.of(limits, 4).capacity(engines) for engines in (0, 1, 2, 3)] == [2, 2, 5, 7]
    none = WorkerLimits.of(Limits(in_flight_per_decode=1, queued_requests=0, requests_per_client=0), 64)
    assert (none.capacity(1), none.queued, none.per_client) == (1, 0, 0)


@pytest.mark.parametrize(
    ("ahead", "completed", "seconds", "expected"),
    [
        (10, 10, 1, 1),
        (100, 10, 1, 10),
        (101, 10, 1, 11),
        (1, 100, 1, 1),
        (9999, 1, 1, 60),
        (5, 0, 3.2, 4),
        (5, 0, 0, 1),
    ],
)
def test_retry_after(ahead: float, completed: int, seconds: float, expected: int) -> None:
    assert retry_after(ahead, completed, seconds) == expected


class FakeExchange:
    """The part of an exchange that admission uses."""

    def __init__(self, size: int | None = 0, peer: str = "a") -> None:
        self.size = size
        self.peer = peer
        self.count: Callable[[int], None] | None = None

    def count_body(self, count: Callable[[int], None]) -> None:
        self.count = count


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def admission(clock: Callable[[], float] | None = None, **limits: Any) -> Admission:
    made = Admission(WorkerLimits.of(Limits(**limits), 1), Counters(), clock or Clock())
    made.resize(1)
    return made


def acquire(owner: Admission, size: int | None = 0, peer: str = "a", name: str | None = None) -> Permit:
    """A permit with a slot or a place in the queue, for a body that has arrived whole."""
    exchange: Any = FakeExchange(size, peer)
    permit = owner.acquire(exchange, name)
    try:
        if size:
            permit.grow(size)
        owner.take_slot(permit)
    except ShedError:
        permit.release()
        raise
    return permit


async def test_first_come_first_served() -> None:
    owner = admission(in_flight_per_decode=1, queued_requests=3)
    first, *others = [acquire(owner) for _ in range(4)]
    order: list[int] = []

    async def wait(number: int, permit: Permit) -> None:
        await owner.wait_in_queue(permit)
        order.append(number)
        permit.release()

    waiting = [asyncio.create_task(wait(number, permit)) for number, permit in enumerate(others)]
    await asyncio.sleep(0)
    with pytest.raises(ShedError, match="queue is full"):
        acquire(owner)
    first.release()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2]
    assert owner.usage == Usage(1)


async def test_a_wait_that_is_too_long_is_shed() -> None:
    owner = admission(in_flight_per_decode=1, queue_seconds=0.01)
    first, second = acquire(owner, 5), acquire(owner, 7)
    with pytest.raises(ShedError) as shed:
        await owner.wait_in_queue(second)
    second.release()
    assert (shed.value.status, shed.value.reason) == (503, ShedReason.QUEUE_TIMEOUT)
    assert owner.usage == Usage(1, in_flight=1, buffered=5)
    assert sum(owner._counters.phases[Phase.QUEUE].counts) == 1
    first.release()


async def test_more_engines_serve_more() -> None:
    owner = admission(in_flight_per_decode=1)
    permits = [acquire(owner) for _ in range(4)]
    assert [permit.admitted is None for permit in permits] == [True, False, False, False]
    owner.resize(3)
    assert [permit.admitted.done() for permit in permits if permit.admitted] == [True, True, False]


async def test_a_head_takes_no_slot_and_no_bytes() -> None:
    """A request takes bytes as its body arrives, and a slot when that is complete."""
    owner = admission(in_flight_per_decode=1, queued_requests=1, buffered_bytes=100)
    exchanges: list[Any] = [FakeExchange(90) for _ in range(5)]
    permits = [owner.acquire(exchange, None) for exchange in exchanges]
    assert owner.usage == Usage(1)
    exchanges[0].count(60)
    with pytest.raises(ShedError) as shed:
        exchanges[1].count(60)
    assert shed.value.reason is ShedReason.BYTES
    for permit in permits[:2]:
        owner.take_slot(permit)
    with pytest.raises(ShedError) as shed:
        owner.take_slot(permits[2])
    assert shed.value.reason is ShedReason.QUEUE_FULL
    assert owner.usage == Usage(1, in_flight=1, waiting=1, buffered=60)
    for permit in permits:
        permit.release()
    assert owner.usage == Usage(1)


async def test_what_cannot_be_served_is_shed_at_its_head() -> None:
    owner = admission(buffered_bytes=100)
    held = acquire(owner, 50)
    large: Any = FakeExchange(51)
    with pytest.raises(ShedError) as shed:
        owner.acquire(large, None)
    assert (shed.value.reason, large.count) == (ShedReason.BYTES, None)
    held.release()


@pytest.mark.parametrize("size", [None, 60])
async def test_a_body_counts_as_it_arrives(size: int | None) -> None:
    owner = admission(buffered_bytes=120)
    exchange: Any = FakeExchange(size)
    other, growing = acquire(owner, 50), owner.acquire(exchange, None)
    growing.grow(60)
    with pytest.raises(ShedError) as shed:
        exchange.count(11)
    assert shed.value.reason is ShedReason.BYTES
    other.release()
    growing.grow(1000)  # alone: bounded by the largest body
    growing.release()
    assert owner.usage == Usage(owner.usage.capacity)


async def test_clients_differ_by_key_or_address() -> None:
    owner = admission(requests_per_client=1)
    mine = acquire(owner, peer="a")
    for peer, name in (("b", None), ("a", "alice"), ("a", "bob")):
        acquire(owner, peer=peer, name=name).release()
    with pytest.raises(ShedError) as shed:
        acquire(owner, peer="a")
    assert (shed.value.status, shed.value.headers["retry-after"]) == (429, "1")
    mine.release()
    acquire(owner, peer="a").release()
    assert not owner._clients


async def test_retry_after_follows_the_rate_of_completions() -> None:
    clock = Clock()
    owner = admission(clock, in_flight_per_decode=10, queued_requests=5)
    served = [acquire(owner) for _ in range(10)]
    waiting = [acquire(owner) for _ in range(5)]
    for second in range(4):
        clock.now = float(second + 1)
        served.pop(0).release()  # one a second, and a queued one takes its slot
        served.append(waiting.pop(0))
        waiting.append(acquire(owner))
    with pytest.raises(ShedError) as shed:
        acquire(owner)
    assert shed.value.headers["retry-after"] == "6"


@pytest.mark.parametrize("seed", range(5))
async def test_every_permit_is_released(seed: int) -> None:
    """Requests that end, disconnect, are cancelled, wait too long or grow, in any order."""
    rng = random.Random(seed)
    owner = admission(
        in_flight_per_decode=3, queued_requests=4, buffered_bytes=60, requests_per_client=5, queue_seconds=0.01
    )
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        await asyncio.sleep(rng.random() * 0.05)
        permit = None
        try:
            permit = acquire(owner, rng.choice([None, 0, 10, 30]), rng.choice("ab"))
            if permit.admitted is not None:
                await owner.wait_in_queue(permit)
            most = max(most, owner.usage.in_flight)
            if rng.random() < 0.3:
                permit.grow(20)
            await asyncio.sleep(rng.random() * 0.01)
            permit.drop_body()
            assert owner.usage.in_flight == owner.usage.capacity or not owner.usage.waiting
        except ShedError:
            pass
        finally:
            if permit is not None:
                permit.release()
                permit.release()

    tasks = [asyncio.create_task(one(number)) for number in range(300)]
    for _ in range(60):
        await asyncio.sleep(0.001)
        rng.choice(tasks).cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    assert most <= 3
    assert owner.usage == Usage(3)
    assert not owner._queue
    assert not owner._clients
    assert owner._counters.queued == 0
