"""The retry budget: how many attempts may be made anew, so that failures never become a storm.

It is for attempts that an engine has got something of. One that found no engine is made anew without it: that adds no
load, and when an engine dies all its requests fail at once.

Invariant: the retries of any nine seconds are at most `free` and a share of the requests of ten.
"""

from math import ceil
from typing import Final

from pdx_proxy.config.settings import Retries

WINDOW_SECONDS: Final = 10
"""How far back requests and retries count, the second that has begun included."""


class RetryBudget:
    """One worker's share of the budget. It is told the time in seconds, which never goes back."""

    __slots__ = ("_free", "_next_second", "_requests", "_retries", "_second", "_share")

    def __init__(self, retries: Retries, workers: int) -> None:
        self._free = ceil(retries.min_retries / workers)
        self._share = retries.budget_percent / 100
        self._requests = [0] * WINDOW_SECONDS
        self._retries = [0] * WINDOW_SECONDS
        self._second = 0
        self._next_second = 0.0

    def request(self, now: float) -> None:
        """Count a request."""
        if now >= self._next_second:
            self._turn(now)
        self._requests[self._second % WINDOW_SECONDS] += 1

    def take(self, now: float) -> bool:
        """Whether one more retry may be made; it is then counted."""
        if now >= self._next_second:
            self._turn(now)
        if sum(self._retries) + 1 > self._free + self._share * sum(self._requests):
            return False
        self._retries[self._second % WINDOW_SECONDS] += 1
        return True

    def _turn(self, now: float) -> None:
        """Forget the seconds that are over."""
        second = int(now)
        for passed in range(min(second - self._second, WINDOW_SECONDS)):
            index = (second - passed) % WINDOW_SECONDS
            self._requests[index] = self._retries[index] = 0
        self._second, self._next_second = second, float(second + 1)
