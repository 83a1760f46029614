"""Finished prefills that are pinned for a D, each until the end of its lease. Time is an argument."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pdx_sim.core.sequence import push_id
from pdx_sim.core.tokens import Digest

_REMEMBERED: Final = 100_000
"""Settled ids that are kept, to distinguish a second read from a read of an id that never existed."""


@dataclass(frozen=True, slots=True)
class PinnedPrefill:
    """The KV of one finished prefill."""

    internal_id: str
    digest: Digest
    tokens: int
    blocks: int
    ends_at: float
    """End of the lease, on the engine's clock."""


class Settled(StrEnum):
    """How the lease of a pinned prefill ended."""

    TAKEN = "taken"
    EXPIRED = "expired"


class Leases:
    """The pinned prefills by P's internal id and by push id, and how the others were settled."""

    __slots__ = ("_by_push_id", "_duration", "_pinned", "_settled", "blocks")

    def __init__(self, duration: float) -> None:
        self._duration = duration
        self._pinned: dict[str, PinnedPrefill] = {}
        self._by_push_id: dict[str, str] = {}
        self._settled: dict[str, Settled] = {}
        self.blocks = 0
        """Blocks of all pinned prefills."""

    def __len__(self) -> int:
        return len(self._pinned)

    @property
    def ids(self) -> list[str]:
        """Internal ids of all pinned prefills."""
        return list(self._pinned)

    def pin(self, internal_id: str, digest: Digest, tokens: int, blocks: int, now: float) -> PinnedPrefill:
        """Begin a lease."""
        pinned = PinnedPrefill(internal_id, digest, tokens, blocks, now + self._duration)
        self._pinned[internal_id] = pinned
        self.blocks += blocks
        self._by_push_id[push_id(internal_id)] = internal_id
        return pinned

    def extend(self, internal_id: str, now: float) -> bool:
        """D's heartbeat: the lease lasts at least two thirds of its duration from now. False if there is no lease."""
        pinned = self._pinned.get(internal_id)
        if pinned is None:
            return False
        ends_at = max(pinned.ends_at, now + self._duration * 2 / 3)
        self._pinned[internal_id] = replace(pinned, ends_at=ends_at)
        return True

    def find(self, key: str) -> PinnedPrefill | None:
        """The pinned prefill with this push id."""
        internal_id = self._by_push_id.get(key)
        return None if internal_id is None else self._pinned.get(internal_id)

    def get(self, internal_id: str) -> PinnedPrefill | None:
        """The pinned prefill with this internal id."""
        return self._pinned.get(internal_id)

    def take(self, internal_id: str) -> PinnedPrefill | None:
        """End a lease because D has the KV or does not need it."""
        return self._end(internal_id, Settled.TAKEN)

    def settled(self, internal_id: str) -> Settled | None:
        """How the lease of an id ended; None if the id is pinned or never was."""
        return self._settled.get(internal_id)

    def expire(self, now: float) -> list[PinnedPrefill]:
        """End every lease that is over."""
        over = [pinned.internal_id for pinned in self._pinned.values() if pinned.ends_at <= now]
        return [pinned for each in over if (pinned := self._end(each, Settled.EXPIRED)) is not None]

    def _end(self, internal_id: str, how: Settled) -> PinnedPrefill | None:
        pinned = self._pinned.pop(internal_id, None)
        if pinned is None:
            return None
        self.blocks -= pinned.blocks
        key = push_id(internal_id)
        if self._by_push_id.get(key) == internal_id:
            del self._by_push_id[key]
        self._settled[internal_id] = how
        if len(self._settled) > _REMEMBERED:
            del self._settled[next(iter(self._settled))]
        return pinned
