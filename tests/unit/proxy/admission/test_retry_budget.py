"""The retry budget over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.admission.retry_budget import RetryBudget
from pdx_proxy.config.settings import Retries


def _taken(budget: RetryBudget, now: float, attempts: int) -> int:
    return sum(budget.take(now, "a", is_crowd=True) for _ in range(attempts))


@pytest.mark.parametrize(
    ("free", "percent", "requests", "allowed"), [(10, 20, 0, 10), (0, 20, 100, 20), (3, 0, 50, 3), (2, 50, 5, 4)]
)
def test_minimum_and_percentage(free: int, percent: int, requests: int, allowed: int) -> None:
    budget = RetryBudget(Retries(min_retries=free, budget_percent=percent), workers=1)
    for _ in range(requests):
        budget.request(100.0)
    assert _taken(budget, 100.9, 200) == allowed
    assert _taken(budget, 109.9, 200) == 0


def test_the_window_is_ten_seconds() -> None:
    budget = RetryBudget(Retries(min_retries=1, budget_percent=10), workers=1)
    for _ in range(100):
        budget.request(5.0)
    assert _taken(budget, 6.0, 50) == 11
    assert _taken(budget, 14.9, 50) == 0
    assert _taken(budget, 16.0, 50) == 1, "the requests are forgotten as well"
    assert _taken(budget, 1e6, 50) == 1


@pytest.mark.parametrize(("workers", "share"), [(1, 10), (2, 5), (3, 4), (64, 1)])
def test_workers_share_the_minimum(workers: int, share: int) -> None:
    budget = RetryBudget(Retries(min_retries=10, budget_percent=0), workers)
    assert _taken(budget, 1.0, 50) == share


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), max_size=200), st.integers(0, 5), st.integers(0, 100))
def test_never_more_than_the_budget(steps: list[tuple[float, bool]], free: int, percent: int) -> None:
    """At any moment, of the last nine seconds; requests count for ten."""
    budget, now = RetryBudget(Retries(min_retries=free, budget_percent=percent), workers=1), 1000.0
    requests: list[float] = []
    taken: list[float] = []
    for pause, retries in steps:
        now += pause
        if retries and budget.take(now, "a", is_crowd=True):
            taken.append(now)
        elif not retries:
            budget.request(now)
            requests.append(now)
        recent = sum(now - at < 9.0 for at in taken)
        assert recent <= free + percent / 100 * sum(now - at <= 19.0 for at in requests)


def test_one_client_gets_half_of_the_budget() -> None:
    budget = RetryBudget(Retries(min_retries=10, budget_percent=0), workers=1)
    assert sum(budget.take(1.0, "a") for _ in range(20)) == 5
    assert sum(budget.take(2.0, "b") for _ in range(20)) == 5
    assert not budget.take(3.0, "c", is_crowd=True)
    assert sum(budget.take(20.0, "a") for _ in range(20)) == 5, "the window is over"


def test_each_client_gets_one_retry_of_a_small_budget() -> None:
    budget = RetryBudget(Retries(min_retries=2, budget_percent=0), workers=2)
    assert [budget.take(1.0, "a"), budget.take(1.0, "b")] == [True, False]


def test_what_is_given_back_may_be_taken_again() -> None:
    budget = RetryBudget(Retries(min_retries=2, budget_percent=0), workers=1)
    for second in range(30):
        assert budget.take(float(second), "a")
        budget.give_back(float(second), "a")
    budget.give_back(30.0, "b")
    assert _taken(budget, 31.0, 5) == 2


def test_clients_are_bounded() -> None:
    budget = RetryBudget(Retries(min_retries=10_000, budget_percent=0), workers=1)
    assert all(budget.take(1.0, str(number)) for number in range(5000))
    assert max(map(len, budget._by_client)) <= 1025
