"""Retry-After: an honest time, also for many clients at once."""

import random

import pytest

from pdx_proxy.admission.drain_rate import LONGEST, DrainRate, seconds_until


@pytest.mark.parametrize(("expected", "seconds"), [(0.0, 1), (0.9, 1), (1.1, 2), (59.2, 60), (9999.0, LONGEST)])
def test_seconds_are_whole(expected: float, seconds: int) -> None:
    assert seconds_until(expected) == seconds


def test_the_rate_is_of_enough_requests() -> None:
    drain = DrainRate(0.0)
    for second in range(1, 31):
        drain.mark(float(second), second * 2)
    assert drain.rate(30.0, 60) == 2.0
    drain.mark(31.0, 160)
    drain.mark(32.0, 260)
    assert drain.rate(33.0, 360) == 100.0, "it follows a change at once when there are enough requests"
    slow = DrainRate(0.0)
    slow.mark(25.0, 1)
    assert slow.rate(50.0, 2) == 0.04
    assert DrainRate(5.0).rate(5.0, 0) == 0.0


def test_nothing_is_measured_after_a_long_time() -> None:
    drain = DrainRate(0.0)
    drain.mark(1.0, 10)
    drain.mark(100.0, 10)
    assert drain.rate(101.0, 10) == 0.0


def test_each_client_has_a_time_of_its_own() -> None:
    drain = DrainRate(0.0)
    drain.mark(10.0, 100)
    promised = [drain.promise(10.0, 100, 20) for _ in range(40)]
    assert promised[0] == 3, "the queue of 20 at 10 in a second, and its own"
    assert promised[-1] == 6
    assert promised == sorted(promised)
    assert drain.promise(100.0, 1000, 0) <= LONGEST


@pytest.mark.parametrize("overload", [2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_most_who_come_back_in_time_are_served(overload: int, seed: int) -> None:
    """A queue of 20 in front of a server of 10 requests in a second. After an overload of 3 s the load is what those
    bring who come back after their Retry-After."""
    rng = random.Random(seed)
    drain, queue, served, completed = DrainRate(-10.0), 0, 0.0, 100
    drain.mark(-1.0, 90)
    due = [(rng.random() * 3.0, False) for _ in range(30 * overload)]
    came_back = kept = 0
    while due:
        due.sort(reverse=True)
        now, again = due.pop()
        while queue and served + 0.1 <= now:
            served += 0.1
            queue, completed = queue - 1, completed + 1
        if not queue:
            served = max(served, now)
        drain.mark(now, completed)
        came_back += again
        if queue < 20:
            queue += 1
            kept += again
        else:
            due.append((now + drain.promise(now, completed, queue), True))
    assert came_back >= 10 * (overload - 1)
    assert kept >= 0.9 * came_back
