"""How many requests of the last minute each address without an API key has sent."""

from typing import Final

_HALF_SECONDS: Final = 30.0
_MOST: Final = 4096
"""Addresses that are counted apart. Requests of further ones count in the total only."""
_EACH: Final = 64
"""The first requests of a half minute whose addresses are all counted."""
_EVERY: Final = 8
"""Of further requests, one in so many is a sample: to read an address costs more than to count a request."""
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
        self._ends: float | None = None
        """When the present half minute ends; None until the time is known."""

    def count(self) -> int:
        """Count a request; return for how many requests its address stands, if its client has no key. Mostly 0."""
        self._requests += 1
        number = self._requests
        if number <= _EACH:
            return 1
        return 0 if number % _EVERY else _EVERY

    def count_address(self, address: str, requests: int) -> None:
        """Count so many requests of an address."""
        counts = self._now
        found = counts.get(address, 0)
        if found or len(counts) < _MOST:
            counts[address] = found + requests

    def advance(self, now: float) -> None:
        """Forget what is too old. Called about once a second."""
        if self._ends is None:  # what was counted before is of the first half minute
            self._ends = now + _HALF_SECONDS
        if now < self._ends:
            return
        idle = now >= self._ends + _HALF_SECONDS
        self._before, self._requests_before = ({}, 0) if idle else (self._now, self._requests)
        self._now, self._requests = {}, 0
        self._ends = now + _HALF_SECONDS

    def counts(self) -> tuple[int, dict[str, int]]:
        """Return the requests of the last minute, and those of each address."""
        counts = dict(self._before)
        for address, count in self._now.items():
            counts[address] = counts.get(address, 0) + count
        return self._requests + self._requests_before, counts

    def report(self) -> dict[str, object]:
        """Return the requests of the last minute, and those of the addresses that sent many of them."""
        requests, counts = self.counts()
        return {"requests": requests, "addresses": {a: n for a, n in counts.items() if n * _SHARE >= requests}}
