"""What the policies of other gateways have in common: one policy for each role, and no queue of their own."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from benchmarks.goodput.engine import Engine
from benchmarks.goodput.simulation import Dispatch, Route
from benchmarks.goodput.traces import Request
from pdx_api.names import Role


class RolePolicy(Protocol):
    """Chooses among the engines of one role. An engine is named by its place among them."""

    def choose(self, request: Request, now: float) -> int:
        """The engine for a request, which is sent to it."""

    def answered(self, request: Request, place: int) -> None:
        """The engine has finished the prefill (its own or that of the P that it waited for)."""

    def ended(self, request: Request, place: int) -> None:
        """The engine has nothing more to do for the request."""


Policies = Callable[[Sequence[Engine], random.Random], RolePolicy]
"""Makes the policy of a role for its engines."""


class PeerRouter:
    """A router that chooses P and D when a request comes and sends it at once."""

    def __init__(
        self,
        engines: Sequence[Engine],
        prefill: Policies | None,
        decode: Policies,
        groups: "Groups",
        rng: random.Random,
    ) -> None:
        self._groups = groups
        self._prefill = prefill([engines[i] for i in groups.prefill], rng) if prefill and groups.prefill else None
        self._decode = decode([engines[i] for i in groups.decode], rng)

    def arrived(self, request: Request, now: float) -> Iterable[Dispatch]:
        """See `Router`; likewise the others."""
        prefill = None if self._prefill is None else self._groups.prefill[self._prefill.choose(request, now)]
        return ((request, Route(self._groups.decode[self._decode.choose(request, now)], prefill)),)

    def answered(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """P is free of the request."""
        if self._prefill is not None and route.prefill is not None:
            place = self._groups.prefill.index(route.prefill)
            self._prefill.answered(request, place)
            self._prefill.ended(request, place)
        self._decode.answered(request, self._groups.decode.index(route.decode))
        return ()

    def ended(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """The engine that answered is free of the request."""
        self._decode.ended(request, self._groups.decode.index(route.decode))
        return ()

    def polled(self, now: float) -> tuple[float, Iterable[Dispatch]]:
        """Metrics are read when a request is placed, where a policy needs them."""
        return float("inf"), ()


class Groups:
    """Indices of the engines that prefill for others, and of those that answer."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.prefill = [engine.index for engine in engines if engine.role is Role.PREFILL]
        self.decode = [engine.index for engine in engines if engine.role is not Role.PREFILL]


def fewest(loads: Sequence[float], places: Iterable[int] | None = None) -> int:
    """The place with the least load; the first of several, as Rust's `min_by_key` returns it."""
    return min(range(len(loads)) if places is None else places, key=loads.__getitem__)
