"""Legs in flight: the number by which engines are compared."""

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

from pdx_proxy.balancing.engine_limits import Legs
from pdx_proxy.balancing.slow_start import EffectiveLoad
from pdx_proxy.endpoints.endpoint import Endpoint

_MOST_CREDENTIALS: Final = 1024
"""Credentials for which endpoints are busy. Beyond that, the oldest is forgotten."""
MOST_BORROWED: Final = 4.0
"""A P has at most so many times the legs of its limit."""
REFUSED_SECONDS: Final = 60.0
"""How long a refusal shows that an engine is less busy than its load and its recent work say."""
_ALL: Final = 8
"""So many refusals in a row, from an engine without legs, show that it refuses every request."""
_FRESH_SECONDS: Final = 1.0
"""How long requests that wait for room then leave its room to others."""
_FEW: Final = 0.01
"""Fewer legs than this make no difference."""


class Borrower:
    """A P that may have more legs than its limit while the others of its revision have fewer."""

    __slots__ = ("lenders", "limit", "most")

    def __init__(self, most: float, lenders: list[Endpoint], limit: float) -> None:
        self.most = most
        """The most legs of this P."""
        self.lenders = lenders
        """The P's of its revision, itself included."""
        self.limit = limit
        """The most legs of all of them together."""


class Refusal:
    """An engine that has refused requests at once. Without it, the engine would always look least loaded."""

    __slots__ = ("at", "legs", "number")

    def __init__(self) -> None:
        self.at = 0.0
        """When it refused the last one."""
        self.number = 0
        """How many it has refused since it served one."""
        self.legs = 0.0
        """The legs that it would still have if it had served what it refused."""


class Load:
    """Legs in flight by endpoint. Acquired and released exactly once for each leg."""

    __slots__ = (
        "at_prefill",
        "backing_off",
        "blocked",
        "borrowers",
        "clock",
        "effective_loads",
        "groups",
        "legs",
        "limits",
        "on_release",
        "refusals",
        "workers",
    )

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.legs: dict[str, int] = {}
        """This worker's legs. Never zero, so nothing is kept of endpoints that are gone."""
        self.at_prefill: dict[str, int] = {}
        """By D, this worker's legs that wait for their P. Never zero."""
        self.backing_off: dict[int, dict[str, float]] = {}
        """By credential, until when endpoints accept none of its requests, by their own answers (Retry-After).

        0: no request at all. Mostly empty.
        """
        self.blocked: dict[str, int] = {}
        """By endpoint, this worker's legs whose clients do not read. Never zero."""
        self.effective_loads: Mapping[str, EffectiveLoad] = {}
        """By name, the endpoints that must receive less than their share; mostly empty."""
        self.refusals: dict[str, Refusal] = {}
        """By name, the endpoints that have refused requests of this worker recently; mostly empty."""
        self.groups: Mapping[str, Sequence[Endpoint]] = {}
        """By name, the endpoints among which a policy selects, itself included."""
        self.workers = 1
        """The workers of this gateway. The refusals of one are those of each, about."""
        self.limits: dict[str, float] = {}
        """By name, the most legs of this gateway at each endpoint."""
        self.borrowers: dict[str, Borrower] = {}
        """By name, the P's that share their limits."""
        self.on_release: Callable[[], None] | None = None
        """Called when an endpoint that was full may have room again, while requests wait for that."""
        self.clock = clock

    def acquire(self, endpoint: Endpoint) -> None:
        """Count one more leg at the endpoint."""
        _add(self.legs, endpoint.name)

    def release(self, endpoint: Endpoint, refused: bool = False) -> None:
        """Count one leg less: once for every `acquire`. `refused`: the endpoint has not served it."""
        if refused:
            self._refuse(endpoint)
        wakes = self._wakes(endpoint)
        if self.refusals and not refused:
            self._serve(endpoint)
        self._end(endpoint, wakes)

    def cancel(self, endpoint: Endpoint) -> None:
        """Count one leg less that the endpoint has neither served nor refused."""
        self._end(endpoint, self._wakes(endpoint))

    def _wakes(self, endpoint: Endpoint) -> bool:
        """Whether requests wait that may find room once the endpoint has one leg less."""
        return self.on_release is not None and (self._makes_room(endpoint) or self._may_refuse_all())

    def _end(self, endpoint: Endpoint, wakes: bool) -> None:
        self._forget(endpoint)
        if wakes and self.on_release is not None:
            self.on_release()

    def group(self, groups: Mapping[str, Sequence[Endpoint]]) -> None:
        """From here on, these are the endpoints among which policies select. Forget old refusals."""
        self.groups = groups
        if self.refusals:
            self.refusals = {name: each for name, each in self.refusals.items() if name in groups and self._holds(each)}

    def has_refused(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint has refused a request recently."""
        refusal = self.refusals.get(endpoint.name)
        return refusal is not None and self._holds(refusal)

    def _holds(self, refusal: Refusal) -> bool:
        return self.clock() - refusal.at < REFUSED_SECONDS

    def _refuse(self, endpoint: Endpoint) -> None:
        """Count a refused leg on, but not beyond the legs of the busiest other endpoint of its group."""
        name = endpoint.name
        refusal = self.refusals.get(name)
        if refusal is None:
            refusal = self.refusals[name] = Refusal()
        refusal.at = self.clock()
        refusal.number += 1
        most = 0
        for each in self.groups.get(name, ()):
            if each.name != name:
                most = max(most, self.count(each))
        refusal.legs = min(refusal.legs + self.workers, most + 1.0)

    def _may_refuse_all(self) -> bool:
        """Whether an endpoint may have been closed because it refuses every request. The end of a leg can open it."""
        for refusal in self.refusals.values():  # noqa: SIM110 (compiled, a loop is faster than a generator)
            if refusal.number >= _ALL:
                return True
        return False

    def _serve(self, endpoint: Endpoint) -> None:
        """A leg has ended that was served. As large a share of those that were refused would have ended too."""
        own = self.refusals.get(endpoint.name)
        if own is not None:
            own.number = 0
        group = self.groups.get(endpoint.name)
        left = -1.0
        for name, refusal in list(self.refusals.items()):
            if group is None or self.groups.get(name) is not group:
                continue
            if not self._holds(refusal):
                del self.refusals[name]
            elif refusal.legs >= _FEW:
                if left < 0.0:
                    left = max(1.0 - self.workers / max(self.count_all(list(group)), 1), 0.0)
                refusal.legs *= left

    def _makes_room(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint is full, and will not be with one leg less."""
        name = endpoint.name
        legs, borrower = self.count(endpoint), self.borrowers.get(name)
        if borrower is None:
            limit = self.limits.get(name, inf)
            return limit <= legs < limit + 1
        total = self.count_all(borrower.lenders)
        full = legs >= borrower.most or total >= borrower.limit
        return full and legs < borrower.most + 1 and total < borrower.limit + 1

    def _forget(self, endpoint: Endpoint) -> None:
        _remove(self.legs, endpoint.name)

    def begin_prefill(self, decode: Endpoint) -> None:
        """A leg to this D has been acquired, and reaches D when a P has finished."""
        _add(self.at_prefill, decode.name)

    def end_prefill(self, decode: Endpoint) -> None:
        """P has finished or failed: once for every `begin_prefill`."""
        _remove(self.at_prefill, decode.name)

    def block(self, endpoint: Endpoint) -> None:
        """The client of a leg reads more slowly than the endpoint answers."""
        _add(self.blocked, endpoint.name)

    def unblock(self, endpoint: Endpoint) -> None:
        """The client has read on, or the leg ends: once for every `block`."""
        _remove(self.blocked, endpoint.name)

    def back_off(self, endpoint: Endpoint, seconds: float, credential: int = 0) -> None:
        """The endpoint accepts no request with this credential for so long; 0: no request at all."""
        self.busy(credential)
        if len(self.backing_off) >= _MOST_CREDENTIALS and credential not in self.backing_off:
            del self.backing_off[next(each for each in self.backing_off if each)]
        until, busy = self.clock() + seconds, self.backing_off.setdefault(credential, {})
        busy[endpoint.name] = max(busy.get(endpoint.name, 0.0), until)

    def busy(self, credential: int = 0) -> Mapping[str, float]:
        """Return the seconds for which endpoints accept no request with this credential. Forget what is over."""
        found: dict[str, float] = {}
        now = self.clock()
        for each in (0, credential):
            busy = self.backing_off.get(each)
            if busy is None:
                continue
            left = {name: until - now for name, until in busy.items() if until > now}
            if left:
                found.update((name, max(seconds, found.get(name, 0.0))) for name, seconds in left.items())
                self.backing_off[each] = {name: until for name, until in busy.items() if until > now}
            else:
                del self.backing_off[each]
        return found

    def legs_at(self, endpoint: Endpoint) -> Legs:
        """Return the legs in flight of an endpoint by their state."""
        name = endpoint.name
        return Legs(self.count(endpoint), self.at_prefill.get(name, 0), self.blocked.get(name, 0))

    def of(self, endpoint: Endpoint) -> float:
        """Return the load of an endpoint: its legs in flight, more for one that must receive less than its share."""
        legs = self.legs.get(endpoint.name, 0)
        return self._effective(endpoint, legs) if self.effective_loads or self.refusals else legs

    def count(self, endpoint: Endpoint) -> int:
        """Return the legs in flight of an endpoint."""
        return self.legs.get(endpoint.name, 0)

    def full(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint has as many legs as it may have; a borrower may have what its lenders leave."""
        name = endpoint.name
        legs, borrower = self.count(endpoint), self.borrowers.get(name)
        if borrower is None:
            limit = self.limits.get(name, inf)
            return legs >= limit or (legs == 0 and name in self.refusals and self._refuses_all(name, limit))
        return legs >= borrower.most or self.count_all(borrower.lenders) >= borrower.limit

    def _refuses_all(self, name: str, limit: float) -> bool:
        """Whether an endpoint without legs refuses every request, so that those that wait are for others.

        It is so only while another endpoint has legs: their ends serve those that wait.
        """
        refusal = self.refusals[name]
        if refusal.number < _ALL or refusal.legs < limit or self.clock() - refusal.at > _FRESH_SECONDS:
            return False
        others = [each for each in self.groups.get(name, ()) if each.name != name]
        return self.count_all(others) > 0

    def count_all(self, endpoints: list[Endpoint]) -> int:
        """Return the legs in flight of several endpoints."""
        legs, total = self.legs, 0
        for endpoint in endpoints:
            total += legs.get(endpoint.name, 0)
        return total

    def limit(self, limits: dict[str, float]) -> None:
        """From here on, endpoints have at most so many legs, by name."""
        self.limits = limits

    def lend(self, lenders: Mapping[str, Sequence[Endpoint]], most: float = inf) -> None:
        """From here on, the P's of a revision share their limits; `most`: the most legs of each."""
        self.borrowers = {}
        for group in lenders.values():
            limits = [self.limits.get(each.name, inf) for each in group]
            for each, limit in zip(group, limits, strict=True):
                self.borrowers[each.name] = Borrower(min(MOST_BORROWED * limit, most), list(group), sum(limits))

    def share(self, endpoint: Endpoint) -> float:
        """Return the load of an endpoint as a share of its limit."""
        return self.of(endpoint) / self.limits.get(endpoint.name, inf)

    def view(self) -> Mapping[str, int]:
        """This worker's legs by endpoint; endpoints without legs are absent."""
        return self.legs

    def _effective(self, endpoint: Endpoint, legs: int) -> float:
        effective, refusal = self.effective_loads.get(endpoint.name), self.refusals.get(endpoint.name)
        load = legs if refusal is None or not self._holds(refusal) else legs + refusal.legs
        return effective.of(load, self.clock()) if effective is not None else load


class Slot:
    """The place of one leg in the load of its endpoint.

    It is acquired when it is created. Its owner releases it once, or hands it over to another owner.
    """

    __slots__ = ("_load", "endpoint")

    def __init__(self, load: Load, endpoint: Endpoint) -> None:
        self._load = load
        self.endpoint = endpoint
        load.acquire(endpoint)

    def release(self, refused: bool = False) -> None:
        """The leg has ended. `refused`: the endpoint has not served it."""
        self._load.release(self.endpoint, refused)

    def cancel(self) -> None:
        """The leg is never created, or its answer shows nothing about other requests."""
        self._load.cancel(self.endpoint)

    def block(self) -> None:
        """The client of the leg reads more slowly than the endpoint answers."""
        self._load.block(self.endpoint)

    def unblock(self) -> None:
        """The client has read on, or the leg ends: once for every `block`."""
        self._load.unblock(self.endpoint)


class Room:
    """The slots of one attempt. Each leg takes over its own; those that no leg has taken are given up."""

    __slots__ = ("_decode", "_prefill")

    def __init__(self, load: Load, decode: Endpoint, prefill: Endpoint | None) -> None:
        self._decode: Slot | None = Slot(load, decode)
        self._prefill: Slot | None = None if prefill is None else Slot(load, prefill)

    def take_decode(self) -> Slot:
        """Return the slot of D's leg, which owns it from here on."""
        slot, self._decode = self._decode, None
        assert slot is not None, "one leg takes a slot"
        return slot

    def take_prefill(self) -> Slot:
        """Return the slot of P's leg, which owns it from here on."""
        slot, self._prefill = self._prefill, None
        assert slot is not None, "one leg takes a slot"
        return slot

    def give_up(self) -> None:
        """Release the slots that no leg has taken."""
        decode, self._decode = self._decode, None
        prefill, self._prefill = self._prefill, None
        if decode is not None:
            decode.cancel()
        if prefill is not None:
            prefill.cancel()


def _add(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _remove(counts: dict[str, int], name: str) -> None:
    left = counts[name] - 1
    if left:
        counts[name] = left
    else:
        del counts[name]
