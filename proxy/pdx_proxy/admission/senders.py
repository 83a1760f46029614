"""How many requests of the last minute each address without an API key has sent."""

from typing import Final

_HALF_SECONDS: Final = 30.0
_MOST: Final = 4096
"""Addresses that are counted apart. Requests of further ones count in the total only."""
_SHARE: Final = 10
"""An address is reported if it has sent at least one of so many requests."""


class Senders:
    """One worker's counts of the present half minute and of the one before."""

    __slots__ = ("_before", "_ends", "_now", "_requests", "_requests_before")

    def __init__(self) -> None:
        self._now: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._requests = 0
        self._requests_before = 0
        self._ends = 0.0

    def count(self) -> None:
        """Count a request of a client with a key."""
        self._requests += 1

    def count_address(self, address: str) -> None:
        """Count a request of a client without one."""
        self._requests += 1
        counts = self._now
        found = counts.get(address, 0)
        if found or len(counts) < _MOST:
            counts[address] = found + 1

    def advance(self, now: float) -> None:
        """Forget what is too old. Called about once a second."""
        if now < self._ends:
            return
        idle = now >= self._ends + _HALF_SECONDS
        self._before, self._requests_before = ({}, 0) if idle else (self._now, self._requests)
        self._now, self._requests = {}, 0
        self._ends = now + _HALF_SECONDS

    def report(self) -> dict[str, object]:
        """Return the requests of the last minute, and those of the addresses that sent many of them."""
        requests = self._requests + self._requests_before
        counts = dict(self._before)
        for address, count in self._now.items():
            counts[address] = counts.get(address, 0) + count
        return {"requests": requests, "addresses": {a: n for a, n in counts.items() if n * _SHARE >= requests}}
