"""Admission: the decision, the queue's order, and that what is taken is given back once."""

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

SHARE = WorkerLimits(in_flight_per_decode=4, queued=2, held_bytes=100, per_client=3, queue_seconds=1.0)

DECISIONS = {
    "idle": (Usage(4), 10, 0, Verdict.SERVE),
    "last-slot": (Usage(4, in_flight=3), 10, 0, Verdict.SERVE),
    "full": (Usage(4, in_flight=4), 10, 0, Verdict.QUEUE),
    "behind-others": (Usage(4, in_flight=3, waiting=1), 10, 0, Verdict.QUEUE),
    "queue-full": (Usage(4, in_flight=4, waiting=2), 10, 0, ShedReason.QUEUE_FULL),
    "all-bytes": (Usage(4, held=90), 10, 0, Verdict.SERVE),
    "too-many-bytes": (Usage(4, held=91), 10, 0, ShedReason.BYTES),
    "large-and-alone": (Usage(4), 1000, 0, Verdict.SERVE),
    "no-body": (Usage(4, held=100), 0, 0, Verdict.SERVE),
    "last-of-client": (Usage(4), 10, 2, Verdict.SERVE),
    "too-many-of-client": (Usage(4), 10, 3, ShedReason.CLIENT_LIMIT),
    "client-before-overload": (Usage(4, in_flight=4, waiting=2, held=100), 10, 3, ShedReason.CLIENT_LIMIT),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_decide(name: str) -> None:
    usage, size, mine, expected = DECISIONS[name]
    assert decide(SHARE, usage, size, mine) is expected


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
    """What admission asks of an exchange."""

    def __init__(self, size: int | None = 0, peer: str = "a") -> None:
        self.size = size
        self.peer = peer
        self.take: Callable[[int], None] | None = None

    def count_body(self, take: Callable[[int], None]) -> None:
        self.take = take


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def admission(clock: Callable[[], float] | None = None, **limits: Any) -> Admission:
    made = Admission(WorkerLimits.of(Limits(**limits), 1), Counters(), clock or Clock())
    made.resize(1)
    return made


def enter(owner: Admission, size: int | None = 0, peer: str = "a", name: str | None = None) -> Permit:
    exchange: Any = FakeExchange(size, peer)
    return owner.enter(exchange, name)


async def test_first_come_first_served() -> None:
    owner = admission(in_flight_per_decode=1, queued_requests=3)
    first, *others = [enter(owner) for _ in range(4)]
    order: list[int] = []

    async def wait(number: int, place: Permit) -> None:
        await owner.await_turn(place)
        order.append(number)
        place.leave()

    waiting = [asyncio.create_task(wait(number, place)) for number, place in enumerate(others)]
    await asyncio.sleep(0)
    with pytest.raises(ShedError, match="queue is full"):
        enter(owner)
    first.leave()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2]
    assert owner.usage == Usage(1)


async def test_who_waits_too_long_is_shed() -> None:
    owner = admission(in_flight_per_decode=1, queue_seconds=0.01)
    first, second = enter(owner, 5), enter(owner, 7)
    with pytest.raises(ShedError) as shed:
        await owner.await_turn(second)
    second.leave()
    assert (shed.value.status, shed.value.reason) == (503, ShedReason.QUEUE_TIMEOUT)
    assert owner.usage == Usage(1, in_flight=1, held=5)
    assert sum(owner._counters.phases[Phase.QUEUE].counts) == 1
    first.leave()


async def test_more_engines_serve_more() -> None:
    owner = admission(in_flight_per_decode=1)
    places = [enter(owner) for _ in range(4)]
    assert [place.turn is None for place in places] == [True, False, False, False]
    owner.resize(3)
    assert [place.turn.done() for place in places if place.turn] == [True, True, False]


async def test_the_rest_of_a_body_counts_as_it_comes() -> None:
    owner = admission(buffered_bytes=100)
    exchange: Any = FakeExchange(None)
    other, growing = enter(owner, 50), owner.enter(exchange, None)
    growing.grow(50)
    with pytest.raises(ShedError) as shed:
        exchange.take(1)
    assert shed.value.reason is ShedReason.BYTES
    other.leave()
    growing.grow(1000)  # alone: bounded by the largest body
    growing.leave()
    assert owner.usage == Usage(owner.usage.capacity)


async def test_clients_are_told_apart_by_key_or_else_by_address() -> None:
    owner = admission(requests_per_client=1)
    mine = enter(owner, peer="a")
    for peer, name in (("b", None), ("a", "alice"), ("a", "bob")):
        enter(owner, peer=peer, name=name).leave()
    with pytest.raises(ShedError) as shed:
        enter(owner, peer="a")
    assert (shed.value.status, shed.value.headers["retry-after"]) == (429, "1")
    mine.leave()
    enter(owner, peer="a").leave()
    assert not owner._clients


async def test_retry_after_follows_the_rate_of_completions() -> None:
    clock = Clock()
    owner = admission(clock, in_flight_per_decode=10, queued_requests=5)
    served = [enter(owner) for _ in range(10)]
    waiting = [enter(owner) for _ in range(5)]
    for second in range(4):
        clock.now = float(second + 1)
        served.pop(0).leave()  # one a second, and one of those who wait is served
        served.append(waiting.pop(0))
        waiting.append(enter(owner))
    with pytest.raises(ShedError) as shed:
        enter(owner)
    assert shed.value.headers["retry-after"] == "6"


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_all_is_given_back(seed: int) -> None:
    """Requests that end, leave, are cut off, wait too long or grow, in any order."""
    rng = random.Random(seed)
    owner = admission(
        in_flight_per_decode=3, queued_requests=4, buffered_bytes=60, requests_per_client=5, queue_seconds=0.01
    )
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        await asyncio.sleep(rng.random() * 0.05)
        place = None
        try:
            place = enter(owner, rng.choice([None, 0, 10, 30]), rng.choice("ab"))
            if place.turn is not None:
                await owner.await_turn(place)
            most = max(most, owner.usage.in_flight)
            if rng.random() < 0.3:
                place.grow(20)
            await asyncio.sleep(rng.random() * 0.01)
            place.drop_body()
            assert owner.usage.in_flight == owner.usage.capacity or not owner.usage.waiting
        except ShedError:
            pass
        finally:
            if place is not None:
                place.leave()
                place.leave()

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
