"""Legs in flight: what engines are compared by."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from pdx_proxy.endpoints.endpoint import Endpoint


class Weight(Protocol):
    """Why an endpoint is to get less than its share (see `EffectiveLoad`)."""

    def load(self, legs: int, now: float) -> float:
        """Its load, for so many legs in flight."""


class Load:
    """Legs in flight by endpoint. Acquired and released exactly once for each leg."""

    __slots__ = ("clock", "effective_loads", "legs")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.legs: dict[str, int] = {}
        """This worker's. Never zero, so that nothing is kept of endpoints that are gone."""
        self.effective_loads: Mapping[str, Weight] = {}
        """By name, the endpoints that are to get less than their share: seldom any."""
        self.clock = clock

    def acquire(self, endpoint: Endpoint) -> None:
        """Count one leg more at the endpoint."""
        self.legs[endpoint.name] = self.legs.get(endpoint.name, 0) + 1

    def release(self, endpoint: Endpoint) -> None:
        """Count one leg less: once for every `acquire`."""
        left = self.legs[endpoint.name] - 1
        if left:
            self.legs[endpoint.name] = left
        else:
            del self.legs[endpoint.name]

    def of(self, endpoint: Endpoint) -> float:
        """What to compare engines by: legs in flight, more for one that is to get less than its share."""
        legs = self.legs.get(endpoint.name, 0)
        return self._weighed(endpoint, legs) if self.effective_loads else legs

    def view(self) -> Mapping[str, int]:
        """Endpoints that have legs in flight, of this worker."""
        return self.legs

    def _weighed(self, endpoint: Endpoint, legs: int) -> float:
        handicap = self.effective_loads.get(endpoint.name)
        return handicap.load(legs, self.clock()) if handicap is not None else legs
