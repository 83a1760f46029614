"""Which pairs get no hand-off because KV does not move within them. Pure.

A failed or slow hand-off makes the gateway watch its pair: a transfer probe goes through it at once. A pair that is not
shown to move KV soon is suspended, and the other pairs of its two engines are watched then. A probe that moves KV ends
both. Meanwhile, no request is split over a pair whose hand-off failed: if KV is blocked, each would wait in vain.
"""

from collections.abc import Collection, Iterable
from typing import Final

from pdx_proxy.endpoints.endpoint import Pairing

WATCH_SECONDS: Final = 3.0
"""How long a watched pair has to move KV. Two watches, one after the other, end within 10 s with the sweeps between."""


class Suspensions:
    """Owner of the watched and the suspended pairs."""

    def __init__(self) -> None:
        self._watched: dict[Pairing, float] = {}
        """When the watch of a pair began."""
        self._failed: set[Pairing] = set()
        """Pairs that are watched because a hand-off failed, and not only because it is slow."""
        self._suspended: set[Pairing] = set()

    @property
    def watched(self) -> frozenset[Pairing]:
        """Pairs that must soon be shown to move KV."""
        return frozenset(self._watched)

    @property
    def suspended(self) -> frozenset[Pairing]:
        """Pairs over which no request is split."""
        return frozenset(self._suspended | self._failed)

    def fail(self, pair: Pairing, now: float) -> None:
        """A hand-off within this pair has failed, and the failure may come from the transfer."""
        self.watch(pair, now)
        if pair in self._watched:
            self._failed.add(pair)

    def watch(self, pair: Pairing, now: float) -> None:
        """KV must soon be shown to move within this pair."""
        if pair not in self._suspended:
            self._watched.setdefault(pair, now)

    def moved(self, pair: Pairing) -> None:
        """A transfer probe has moved KV within this pair."""
        self._end_watch(pair)
        self._suspended.discard(pair)

    def handed_over(self, pair: Pairing) -> None:
        """A request was handed over within a watched pair. It proves less than a probe: D may have computed the KV."""
        self._end_watch(pair)

    def suspend(self, pair: Pairing, pairs: Iterable[Pairing], now: float) -> None:
        """KV does not move within this pair. Watch the other pairs of its engines, of `pairs`, which are all."""
        self._end_watch(pair)
        if pair in self._suspended:
            return
        self._suspended.add(pair)
        for other in pairs:
            if other[:2] == pair[:2] or other[2:] == pair[2:]:
                self.watch(other, now)

    def advance(self, pairs: Collection[Pairing], now: float) -> None:
        """Forget the pairs that are not of `pairs`, and suspend those that were watched for too long."""
        self._suspended.intersection_update(pairs)
        self._failed.intersection_update(pairs)
        self._watched = {pair: since for pair, since in self._watched.items() if pair in pairs}
        for pair in [pair for pair, since in self._watched.items() if now - since >= WATCH_SECONDS]:
            self.suspend(pair, pairs, now)

    def _end_watch(self, pair: Pairing) -> None:
        self._watched.pop(pair, None)
        self._failed.discard(pair)
