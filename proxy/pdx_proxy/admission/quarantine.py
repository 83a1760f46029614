"""Which requests and clients are isolated because engines died of their requests. Pure.

The control process owns the table of deaths. Workers report each body that an engine had when it died, and receive the
verdicts that follow. Bodies are known by a hash with the gateway's own key.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BODY_SECONDS: Final = 30.0
"""How long a body is refused."""
CLIENT_SECONDS: Final = 60.0
"""How long its client may use only the engines that it killed. Deaths count together for the same time."""
MOST_COMMON: Final = 8
"""If more bodies were on both engines, nothing shows which one killed them."""
_MOST_DEATHS: Final = 64
_MOST_BODIES: Final = 1024
_MOST_VERDICTS: Final = 256

Start = tuple[str, int]
"""One start of an engine: its name and generation."""
BodyKey = tuple[str, int]
"""A client, and the hash of a body of it."""


@dataclass(frozen=True, slots=True)
class Casualty:
    """Worker to control: an engine died while it had a body."""

    start: Start
    client: str
    """The name of its key, else its address (see `Admission.client_of`)."""
    body: int
    """The hash of the body."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """What a client may use."""

    engines: frozenset[str]
    """Names of engines."""
    until: float
    """When it ends, in seconds of the gateway's clock."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Control to worker: what is isolated."""

    key: int
    """The key of the hashes of bodies."""
    bodies: Mapping[BodyKey, float] = field(default_factory=dict)
    """Bodies that are refused, and when that ends."""
    clients: Mapping[str, Restriction] = field(default_factory=dict)

    def at(self, now: float) -> "Verdicts":
        """Return the verdicts that are still in force."""
        bodies = {body: until for body, until in self.bodies.items() if until > now}
        return Verdicts(self.key, bodies, {name: each for name, each in self.clients.items() if each.until > now})


@dataclass(slots=True)
class _Death:
    """An engine that died."""

    at: float
    bodies: set[BodyKey] = field(default_factory=set)
    """What it had."""


class Deaths:
    """The engines that died in the last minute, with the bodies that they had."""

    def __init__(self) -> None:
        self._deaths: dict[Start, _Death] = {}
        """In the order of their first report."""
        self._common: dict[tuple[Start, Start], set[BodyKey]] = {}
        """By two engines, the earlier one first, the bodies that were on both."""

    def add(self, casualty: Casualty, now: float) -> None:
        """Record what a worker has reported."""
        self._forget(now)
        start, body = casualty.start, (casualty.client, casualty.body)
        death = self._deaths.setdefault(start, _Death(now))
        if body in death.bodies or len(death.bodies) >= _MOST_BODIES:
            return
        death.bodies.add(body)
        for other, earlier in self._deaths.items():
            if other != start and body in earlier.bodies:
                pair = (other, start) if (other, start) in self._common else (start, other)
                self._common.setdefault(pair, set()).add(body)

    def verdicts(self, key: int, now: float, is_crowd: Callable[[str], bool]) -> Verdicts:
        """Return what follows. `is_crowd`: whether a client stands for many, so that only its bodies are refused."""
        self._forget(now)
        bodies: dict[BodyKey, float] = {}
        clients: dict[str, Restriction] = {}
        for (first, second), common in self._common.items():
            if len(common) > MOST_COMMON:
                continue
            last = max(self._deaths[first].at, self._deaths[second].at)
            names = frozenset((first[0], second[0]))
            for body in common:
                client = body[0]
                bodies[body] = max(bodies.get(body, 0.0), last + BODY_SECONDS)
                if not is_crowd(client):
                    before = clients.get(client, Restriction(frozenset(), 0.0))
                    clients[client] = Restriction(before.engines | names, max(before.until, last + CLIENT_SECONDS))
        return Verdicts(key, _latest(bodies), _latest(clients)).at(now)

    def clients(self) -> frozenset[str]:
        """Return the clients of bodies that were on two engines that died."""
        return frozenset(client for common in self._common.values() for client, _ in common)

    def _forget(self, now: float) -> None:
        old = [start for start, death in self._deaths.items() if now - death.at >= CLIENT_SECONDS]
        excess = list(self._deaths)[: max(len(self._deaths) - _MOST_DEATHS, 0)]
        for start in {*old, *excess}:
            del self._deaths[start]
        if old or excess:
            self._common = {
                pair: common for pair, common in self._common.items() if all(start in self._deaths for start in pair)
            }


def _latest(table: dict[Any, Any]) -> dict[Any, Any]:
    """Bound a table. Entries at its end are of the latest deaths."""
    return dict(list(table.items())[-_MOST_VERDICTS:])


def is_majority(address: str, requests: int, by_address: Mapping[str, int]) -> bool:
    """Whether an address sent more than half of the requests: it is probably everybody's ingress."""
    return 2 * by_address.get(address, 0) > requests
