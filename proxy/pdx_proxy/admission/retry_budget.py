"""The retry budget: how many attempts may be repeated, so that failures never become a storm. Pure.

It limits attempts of which an engine has received something. An attempt that reached no engine is repeated without it:
that adds no load, and when an engine dies, all its requests fail at once.

Invariants: the retries of any nine seconds are at most the minimum plus a percentage of the requests of ten. One client
gets at most half of them, so that it leaves something to the others.
"""

from math import ceil
from typing import Final

from pdx_proxy.config.settings import Retries

WINDOW_SECONDS: Final = 10
"""For how many seconds requests and retries count, the present one included."""
_SHARE: Final = 0.5
"""The part of the budget that one client may use; at least one retry."""
_MOST_CLIENTS: Final = 1024
"""Clients whose retries are counted apart in one second. Retries of further ones count as those of one client."""


class RetryBudget:
    """One worker's share of the budget. Callers pass the time in seconds, which never decreases."""

    __slots__ = ("_by_client", "_min_retries", "_next_second", "_requests", "_retries", "_second", "_share")

    def __init__(self, retries: Retries, workers: int) -> None:
        self._min_retries = ceil(retries.min_retries / workers)
        self._share = retries.budget_percent / 100
        self._requests = [0] * WINDOW_SECONDS
        self._retries = [0] * WINDOW_SECONDS
        self._by_client: list[dict[str, int]] = [{} for _ in range(WINDOW_SECONDS)]
        """The retries of each second by client; never zero."""
        self._second = 0
        self._next_second = 0.0

    def request(self, now: float) -> None:
        """Count a request."""
        if now >= self._next_second:
            self._advance(now)
        self._requests[self._second % WINDOW_SECONDS] += 1

    def take(self, now: float, client: str, *, is_crowd: bool = False) -> bool:
        """Whether one more retry of this client is allowed; if so, it is counted.

        `is_crowd`: the client stands for many, so that it has no share of its own.
        """
        if now >= self._next_second:
            self._advance(now)
        allowed = self._min_retries + self._share * sum(self._requests)
        if sum(self._retries) + 1 > allowed:
            return False
        counts = self._by_client[self._second % WINDOW_SECONDS]
        if client not in counts and len(counts) >= _MOST_CLIENTS:
            client = ""
        used = sum([second.get(client, 0) for second in self._by_client])
        if used and used + 1 > _SHARE * allowed and not is_crowd:
            return False
        counts[client] = counts.get(client, 0) + 1
        self._retries[self._second % WINDOW_SECONDS] += 1
        return True

    def give_back(self, now: float, client: str) -> None:
        """Forget the client's latest retry that still counts: the request was at fault, and no engine."""
        if now >= self._next_second:
            self._advance(now)
        for passed in range(WINDOW_SECONDS):
            index = (self._second - passed) % WINDOW_SECONDS
            counts = self._by_client[index]
            left = counts.pop(client, 0) - 1
            if left >= 0:
                self._retries[index] -= 1
                if left:
                    counts[client] = left
                return

    def _advance(self, now: float) -> None:
        """Forget the seconds that have left the window."""
        second = int(now)
        for passed in range(min(second - self._second, WINDOW_SECONDS)):
            index = (second - passed) % WINDOW_SECONDS
            self._requests[index] = self._retries[index] = 0
            self._by_client[index].clear()
        self._second, self._next_second = second, float(second + 1)
