"""Endpoints that must receive less than their share: in slow start, or with lost hand-offs. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot

_FIRST_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class EffectiveLoad:
    """Why an endpoint's load counts for more than its legs in flight."""

    lost: int = 0
    """Lost hand-offs. Each holds blocks as an open one does, for longer."""
    since: float = 0.0
    """When its slow start began, in seconds of the gateway's clock."""
    seconds: float = 0.0
    """How long slow start lasts; 0: the endpoint is not in slow start."""

    def of(self, legs: float, now: float) -> float:
        """Return the effective load for a number of legs.

        During slow start it is `(legs + 1) / share - 1`, with `share` rising linearly from 0.1 to 1. The `+ 1` makes an
        idle endpoint in slow start rank behind an idle endpoint that is not.
        """
        legs += self.lost
        age = now - self.since
        if age >= self.seconds:
            return legs
        share = _FIRST_SHARE + (1 - _FIRST_SHARE) * max(0.0, age) / self.seconds
        return (legs + 1) / share - 1


def effective_loads(snapshot: Snapshot, slow_start: float, now: float) -> Mapping[str, EffectiveLoad]:
    """Return the endpoints that must receive less than their share, by name.

    An endpoint starts slowly if another endpoint of its group had been warm for `slow_start` seconds when it became
    warm. Engines that start together, as all do when the gateway starts, share evenly from the beginning.
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
