"""The search for the goodput."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_cli.bench.analysis.search import GOAL, Measured, Search, expected_steps


def run(search: Search, share_of: "object") -> list[Measured]:
    found: list[Measured] = []
    while (rate := search.next_rate(found)) is not None:
        found.append(Measured(rate, share_of(rate)))  # type: ignore[operator]
    return found


@given(st.floats(0.01, 1000), st.floats(0.01, 1000))
def test_the_goodput_is_found_wherever_it_is(true: float, start: float) -> None:
    search = Search(start)
    found = run(search, lambda rate: 1.0 if rate <= true else 0.0)
    assert search.goodput(found) == pytest.approx(true, rel=0.055)
    assert len(found) < 24


@given(st.integers(0, 10_000), st.floats(0.3, 30))
def test_noise_never_keeps_it_from_ending(seed: int, start: float) -> None:
    rng = random.Random(seed)
    search = Search(start)
    found = run(search, lambda _: rng.random())
    assert len(found) <= 24
    assert search.goodput(found) >= 0


def test_it_interpolates_between_the_last_two_rates() -> None:
    search = Search(1.0)
    measured = [Measured(10.0, 0.95), Measured(10.4, 0.85)]
    assert search.next_rate(measured) is None
    assert 10.15 < search.goodput(measured) < 10.25
    assert Search(1.0).goodput([Measured(10.0, GOAL), Measured(10.4, 0.0)]) == 10.0


def test_nothing_is_good_enough() -> None:
    search = Search(1.0, least=0.1)
    found = run(search, lambda _: 0.2)
    assert search.goodput(found) == 0.0
    assert min(each.rate for each in found) >= 0.1


def test_a_good_rate_above_one_that_is_not_counts_for_nothing() -> None:
    measured = [Measured(4.0, 0.95), Measured(8.0, 0.5), Measured(9.0, 0.99)]
    assert Search(1.0).next_rate(measured) == pytest.approx(32**0.5)


def test_a_repeat_begins_at_the_goodput_and_is_shorter() -> None:
    again = Search(1.0).repeat(7.0)
    assert again.next_rate(()) == 7.0
    assert len(run(again, lambda rate: float(rate < 7.3))) <= 4


def test_steps_that_are_left() -> None:
    search = Search(1.0)
    found: list[Measured] = []
    left = [search.remaining(found)]
    while (rate := search.next_rate(found)) is not None:
        found.append(Measured(rate, float(rate < 3)))
        left.append(search.remaining(found))
    assert left[-1] == 0
    assert max(left) >= 4
    assert expected_steps(3, arms=2) == 2 * expected_steps(3)
