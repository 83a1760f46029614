"""Which pairs get no hand-off because KV does not move within them. Pure.

A failed or slow hand-off makes the gateway watch its pair: a transfer probe goes through it at once. A pair that is not
shown to move KV soon is suspended, and the other pairs of its two engines are watched then. A probe that moves KV ends
both. Meanwhile, no request is split over a pair whose hand-off failed: if KV is blocked, each would wait in vain.
A pair stays suspended, or watched, as long as both engines exist: while one warms up, is paused or is not ready, no
probe goes through the pair, and a warm-up may have used another partner. Only an engine that is gone ends it.
"""

from collections.abc import Collection
from typing import Final

from pdx_proxy.endpoints.endpoint import Names

WATCH_SECONDS: Final = 3.0
"""How long a watched pair has to move KV. Two watches, one after the other, end within 10 s with the sweeps between."""
_FAIR_SHARE: Final = 0.5
"""For this share of a watch, a probe must have run until its silence is evidence against both engines. In a large pool,
it may have begun late, because it had to wait for others."""


class Suspensions:
    """Owner of the watched and the suspended pairs, each the name of a P and the name of a D."""

    def __init__(self) -> None:
        self._watched: dict[Names, float] = {}
        """When the watch of a pair began."""
        self._probes: dict[Names, float] = {}
        """When the probes that run began."""
        self._failed: set[Names] = set()
        """Pairs that are watched because a hand-off failed, and not only because it is slow."""
        self._suspended: set[Names] = set()

    @property
    def watched(self) -> frozenset[Names]:
        """Pairs that must soon be shown to move KV."""
        return frozenset(self._watched)

    @property
    def suspended(self) -> frozenset[Names]:
        """Pairs over which no request is split."""
        return frozenset(self._suspended | self._failed)

    def fail(self, pair: Names, now: float) -> None:
        """A hand-off within this pair has failed, and the failure may come from the transfer."""
        self.watch(pair, now)
        if pair in self._watched:
            self._failed.add(pair)

    def watch(self, pair: Names, now: float) -> None:
        """KV must soon be shown to move within this pair."""
        if pair not in self._suspended:
            self._watched.setdefault(pair, now)

    def begin_probe(self, pair: Names, now: float) -> None:
        """A transfer probe begins within this pair."""
        self._probes[pair] = now

    def end_probe(self, pair: Names) -> None:
        """It has ended, whatever it has shown."""
        self._probes.pop(pair, None)

    def moved(self, pair: Names) -> None:
        """A transfer probe has moved KV within this pair."""
        self._end_watch(pair)
        self._suspended.discard(pair)

    def handed_over(self, pair: Names) -> None:
        """A request was handed over within a watched pair. It proves less than a probe: D may have computed the KV."""
        self._end_watch(pair)

    def suspend(self, pair: Names, probed: Collection[Names], now: float) -> None:
        """KV does not move within this pair. Watch the other pairs of its engines among those that can be probed."""
        self._end_watch(pair)
        if pair in self._suspended:
            return
        self._suspended.add(pair)
        for other in probed:
            if other[0] == pair[0] or other[1] == pair[1]:
                self.watch(other, now)

    def advance(
        self, probed: Collection[Names], prefills: Collection[str], decodes: Collection[str], now: float
    ) -> None:
        """Suspend the pairs that were watched for too long, and forget those of which an engine is gone.

        `probed` are all pairs that can be probed now, `prefills` and `decodes` the names of all engines. The watch of a
        pair that cannot be probed begins anew.
        """
        gone = {
            pair for pair in (*self._suspended, *self._watched) if pair[0] not in prefills or pair[1] not in decodes
        }
        self._suspended -= gone
        self._failed -= gone
        self._watched = {
            pair: since if pair in probed else now for pair, since in self._watched.items() if pair not in gone
        }
        for pair in [pair for pair, since in self._watched.items() if now - since >= WATCH_SECONDS]:
            had_time = now - self._probes.get(pair, now) >= _FAIR_SHARE * WATCH_SECONDS
            self.suspend(pair, probed if had_time else (), now)

    def _end_watch(self, pair: Names) -> None:
        self._watched.pop(pair, None)
        self._failed.discard(pair)
