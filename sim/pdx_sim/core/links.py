"""Links that transfers of KV share. Time is an argument.

A transfer moves in pieces and reserves the next one when the last has passed. A link serves pieces in the order of
their reservations, so transfers that are under way at the same time get equal shares of it.
"""

from typing import Final

PIECES: Final = 16
"""Pieces of one transfer."""
GIGABYTE: Final = 1e9


class Link:
    """A link of so many bytes per second. Invariant: what is reserved passes one after the other."""

    __slots__ = ("_bytes_per_second", "_free_at")

    def __init__(self, gigabytes_per_second: float) -> None:
        self._bytes_per_second = gigabytes_per_second * GIGABYTE
        self._free_at = 0.0

    def reserve(self, size: float, now: float) -> float:
        """When a piece of `size` bytes has passed."""
        self._free_at = max(self._free_at, now) + size / self._bytes_per_second
        return self._free_at
