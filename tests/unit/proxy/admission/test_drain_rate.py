"""Retry-After: an honest time, also for many clients at once."""

import random
from itertools import pairwise

import pytest

from pdx_proxy.admission.drain_rate import LONGEST, DrainRate, seconds_until


def measured(seconds: float) -> DrainRate:
    """After requests that took so long each."""
    drain = DrainRate()
    drain.mark(100, 100 * seconds)
    return drain


@pytest.mark.parametrize(("expected", "seconds"), [(0.0, 1), (0.9, 1), (1.1, 2), (59.2, 60), (9999.0, LONGEST)])
def test_seconds_are_whole(expected: float, seconds: int) -> None:
    assert seconds_until(expected) == seconds


def test_the_rate_is_of_the_last_requests() -> None:
    drain = DrainRate()
    assert drain.rate(8) == 0.0
    drain.mark(1, 10.0)
    assert drain.rate(8) == 0.8, "before a second one has ended, and however long the gateway was idle"
    for ended in range(2, 102):
        drain.mark(ended, 10.0 + (ended - 1) * 2.0)
    assert drain.rate(8) == pytest.approx(4.0, rel=0.05)


def test_each_client_has_a_time_of_its_own() -> None:
    drain = measured(1.0)
    promised = [drain.promise(10.0, 10, 20, 0.0) for _ in range(40)]
    assert promised[0] == 3, "the queue of 20 at 10 in a second, and its own"
    assert promised[-1] == 6
    assert promised == sorted(promised)


def test_a_client_comes_back_before_the_queue_is_empty() -> None:
    """All wait since the same moment. It is over, and eight requests of 10 s run. Those shed come back to a queue."""
    drain = measured(10.0)
    promised = [drain.promise(30.0, 8, 0.0, 15.0) for _ in range(40)]
    assert promised[:12] == [1] * 12
    assert promised[-1] == 35, "50 s of work are before the last, and it waits for 15 s of them in the queue"


def test_more_than_can_be_promised_is_spread() -> None:
    drain = measured(10.0)
    promised = [drain.promise(30.0, 8, 0.0, 0.0) for _ in range(400)]
    assert max(promised) == LONGEST
    late = promised[100:]
    assert max(late.count(seconds) for seconds in set(late)) <= 2 * len(late) / len(set(late))
    assert max(b - a for a, b in pairwise(promised)) <= 2


def test_before_anything_is_measured_clients_come_back_at_different_times() -> None:
    drain = DrainRate()
    promised = [drain.promise(0.0, 8, 20.0, 30.0) for _ in range(9)]
    assert promised[0] == 5
    assert sorted(promised) == list(range(1, 10))


@pytest.mark.parametrize("overload", [2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_most_who_come_back_in_time_are_served(overload: int, seed: int) -> None:
    """A queue of 20 in front of a server of 10 requests in a second. After an overload of 3 s the load is what those
    bring who come back after their Retry-After."""
    rng = random.Random(seed)
    drain, queue, served = measured(0.1), 0, 0.0
    due = [(rng.random() * 3.0, False) for _ in range(30 * overload)]
    came_back = kept = 0
    while due:
        due.sort(reverse=True)
        now, again = due.pop()
        while queue and served + 0.1 <= now:
            served += 0.1
            queue -= 1
        if not queue:
            served = max(served, now)
        came_back += again
        if queue < 20:
            queue += 1
            kept += again
        else:
            due.append((now + drain.promise(now, 1, queue, 0.0), True))
    assert came_back >= 10 * (overload - 1)
    assert kept >= 0.9 * came_back
