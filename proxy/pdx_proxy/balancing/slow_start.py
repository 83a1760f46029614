"""Endpoints that are to get less than their share of the legs, as a pure function of what is known of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot

_FIRST_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class EffectiveLoad:
    """What makes an endpoint's load count for more than its legs in flight."""

    lost: int = 0
    """Lost hand-offs: each holds blocks as an open one does, for longer."""
    since: float = 0.0
    """When its slow start began, in seconds of the gateway's clock."""
    seconds: float = 0.0
    """How long the slow start lasts; 0: there is none."""

    def load(self, legs: int, now: float) -> float:
        """Legs that an engine with its whole share would have, to be chosen exactly as often.

        In slow start the share rises evenly from a tenth. One leg more is counted on both sides, so that an idle engine
        in slow start comes after one that is idle too.
        """
        legs += self.lost
        age = now - self.since
        if age >= self.seconds:
            return legs
        share = _FIRST_SHARE + (1 - _FIRST_SHARE) * max(0.0, age) / self.seconds
        return (legs + 1) / share - 1


def effective_loads(snapshot: Snapshot, slow_start: float, now: float) -> Mapping[str, EffectiveLoad]:
    """The handicapped endpoints by name.

    An endpoint starts slowly beside another that had been warm for `slow_start` seconds when it became warm itself.
    Engines that start together, as all do when the gateway starts, so share evenly from the beginning.
    """
    slow = {e.name for group in (*snapshot.peers.values(), snapshot.decode) for e in _late(group, slow_start, now)}
    return {
        e.name: EffectiveLoad(e.lost, e.warm_since, slow_start if e.name in slow else 0.0)
        for e in (*snapshot.prefill, *snapshot.decode)
        if e.lost or e.name in slow
    }


def _late(group: Iterable[Endpoint], slow_start: float, now: float) -> list[Endpoint]:
    young = [e for e in group if now - e.warm_since < slow_start]
    if not young:
        return []
    first = min(e.warm_since for e in group)
    return [e for e in young if e.warm_since - first >= slow_start]
