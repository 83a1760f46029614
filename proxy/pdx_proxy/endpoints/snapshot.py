"""The immutable snapshot of all endpoints. A change replaces it as a whole."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import groupby
from operator import attrgetter
from typing import Any

from pdx_api.names import Role
from pdx_proxy.endpoints.endpoint import Endpoint, Pairing, State, pairing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All endpoints at one moment."""

    prefill: tuple[Endpoint, ...] = ()
    """The warm prefill engines."""
    decode: tuple[Endpoint, ...] = ()
    """The warm engines that answer clients: decode, or aggregated. Suspect ones while none is warm."""
    complete: tuple[Endpoint, ...] = ()
    """The engines of `decode` that are aggregated or have a warm P of their revision to take KV from."""
    peers: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)
    """The warm prefill engines by revision. Empty while the engines of `decode` are suspect."""
    everything: tuple[Endpoint, ...] = ()
    handshaken: frozenset[Pairing] = frozenset()
    """Pairs that exchanged KV during warm-up: see `pairing`."""
    suspended: frozenset[Pairing] = frozenset()
    """Pairs within which KV does not move: no request is split over them."""
    watched: frozenset[Pairing] = frozenset()
    """Pairs that will be suspended soon unless a hand-off or a transfer probe succeeds."""

    @classmethod
    def of(
        cls,
        endpoints: Iterable[Endpoint],
        handshaken: frozenset[Pairing] = frozenset(),
        suspended: frozenset[Pairing] = frozenset(),
        watched: frozenset[Pairing] = frozenset(),
    ) -> "Snapshot":
        """Sort endpoints by what they may be selected for."""
        everything = tuple(endpoints)
        warm = [e for e in everything if e.warm]
        decode = tuple(e for e in warm if e.role is not Role.PREFILL)
        if not decode:
            # One lost connection proves little, so the last engine still gets requests during its warm-up. Whole
            # requests only: it may have restarted, and its first work must not be decoding over remote KV.
            decode = tuple(e for e in everything if e.state is State.SUSPECT and e.role is not Role.PREFILL)
        prefill = tuple(e for e in warm if e.role is Role.PREFILL)
        by_revision = sorted(prefill if decode and decode[0].warm else (), key=attrgetter("revision"))
        peers = {revision: tuple(group) for revision, group in groupby(by_revision, key=attrgetter("revision"))}
        return cls(
            prefill=prefill,
            decode=decode,
            complete=tuple(
                d for d in decode if d.role is Role.AGGREGATED or partners(d, peers.get(d.revision, ()), suspended)
            ),
            peers=peers,
            everything=everything,
            handshaken=handshaken,
            suspended=suspended,
            watched=watched,
        )

    def only(self, names: Collection[str]) -> "Snapshot":
        """Return the snapshot of the warm engines of these names."""
        chosen = (e for e in self.everything if e.warm and e.name in names)
        return Snapshot.of(chosen, self.handshaken, self.suspended, self.watched)


def partners(decode: Endpoint, prefills: tuple[Endpoint, ...], suspended: frozenset[Pairing]) -> tuple[Endpoint, ...]:
    """Return those of the P's of D's revision whose KV moves to D, as far as is known."""
    return tuple(p for p in prefills if pairing(p, decode) not in suspended) if suspended else prefills


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """The difference between two snapshots: what a process that has the first one needs to have the second."""

    changed: tuple[Endpoint, ...] = ()
    """Endpoints that are new or differ."""
    gone: tuple[str, ...] = ()
    """Names of the endpoints that are gone."""
    handshaken: frozenset[Pairing] = frozenset()
    """Pairs that were added."""
    forgotten: frozenset[Pairing] = frozenset()
    """Pairs that were removed."""
    suspended: frozenset[Pairing] = frozenset()
    """All suspended pairs."""
    watched: frozenset[Pairing] = frozenset()
    """All watched pairs."""

    def __reduce__(self) -> tuple[type["SnapshotChange"], tuple[Any, ...]]:
        """Send it to another process."""
        return SnapshotChange, tuple([getattr(self, each.name) for each in fields(self)])

    @classmethod
    def between(cls, before: Snapshot, after: Snapshot) -> "SnapshotChange":
        """Compare endpoints by identity: an endpoint that has not changed is the same object in both snapshots."""
        left = {e.name: e for e in before.everything}
        return cls(
            changed=tuple(e for e in after.everything if left.pop(e.name, None) is not e),
            gone=tuple(left),
            handshaken=after.handshaken - before.handshaken,
            forgotten=before.handshaken - after.handshaken,
            suspended=after.suspended,
            watched=after.watched,
        )

    def apply_to(self, before: Snapshot) -> Snapshot:
        """Return the second snapshot. Endpoints that have not changed stay the same objects."""
        endpoints = {e.name: e for e in before.everything}
        for name in self.gone:
            del endpoints[name]
        endpoints.update((e.name, e) for e in self.changed)
        handshaken = (before.handshaken - self.forgotten) | self.handshaken
        return Snapshot.of(endpoints.values(), handshaken, self.suspended, self.watched)
