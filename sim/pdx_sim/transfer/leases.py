"""Finished prefills that wait for a D, each until the end of its lease. Time is an argument."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pdx_sim.core.sequence import meeting_key
from pdx_sim.core.tokens import Digest

_REMEMBERED: Final = 100_000
"""Settled ids kept to tell a second read from an unknown one."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The KV of one finished prefill."""

    internal_id: str
    digest: Digest
    tokens: int
    blocks: int
    ends_at: float
    """End of the lease, on the engine's clock."""


class Settled(StrEnum):
    """How a parked prefill left."""

    TAKEN = "taken"
    EXPIRED = "expired"


class Leases:
    """What is parked, by P's internal id and by meeting key, and how what has left was settled."""

    __slots__ = ("_by_key", "_duration", "_parked", "_settled", "blocks")

    def __init__(self, duration: float) -> None:
        self._duration = duration
        self._parked: dict[str, Parked] = {}
        self._by_key: dict[str, str] = {}
        self._settled: dict[str, Settled] = {}
        self.blocks = 0
        """Blocks of everything parked."""

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def ids(self) -> list[str]:
        """Internal ids of everything parked."""
        return list(self._parked)

    def park(self, internal_id: str, digest: Digest, tokens: int, blocks: int, now: float) -> Parked:
        """Begin a lease."""
        parked = Parked(internal_id, digest, tokens, blocks, now + self._duration)
        self._parked[internal_id] = parked
        self.blocks += blocks
        self._by_key[meeting_key(internal_id)] = internal_id
        return parked

    def extend(self, internal_id: str, now: float) -> bool:
        """D's heartbeat: the lease lasts two thirds of its duration from now, or as long as it would anyway."""
        parked = self._parked.get(internal_id)
        if parked is None:
            return False
        ends_at = max(parked.ends_at, now + self._duration * 2 / 3)
        self._parked[internal_id] = replace(parked, ends_at=ends_at)
        return True

    def find(self, key: str) -> Parked | None:
        """What is parked under a meeting key."""
        internal_id = self._by_key.get(key)
        return None if internal_id is None else self._parked.get(internal_id)

    def get(self, internal_id: str) -> Parked | None:
        """What is parked under an internal id."""
        return self._parked.get(internal_id)

    def take(self, internal_id: str) -> Parked | None:
        """End a lease because D has the KV or needs it no more."""
        return self._leave(internal_id, Settled.TAKEN)

    def settled(self, internal_id: str) -> Settled | None:
        """How an id left; None when it never was here or still is."""
        return self._settled.get(internal_id)

    def expire(self, now: float) -> list[Parked]:
        """End every lease that is over."""
        over = [parked.internal_id for parked in self._parked.values() if parked.ends_at <= now]
        return [parked for each in over if (parked := self._leave(each, Settled.EXPIRED)) is not None]

    def _leave(self, internal_id: str, how: Settled) -> Parked | None:
        parked = self._parked.pop(internal_id, None)
        if parked is None:
            return None
        self.blocks -= parked.blocks
        key = meeting_key(internal_id)
        if self._by_key.get(key) == internal_id:
            del self._by_key[key]
        self._settled[internal_id] = how
        if len(self._settled) > _REMEMBERED:
            del self._settled[next(iter(self._settled))]
        return parked
