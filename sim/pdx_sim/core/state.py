"""The state of one start of an engine: its KV memory, counters and clock. Core and connector share it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pdx_sim.core.blocks import BlockPool
from pdx_sim.core.counters import Counts
from pdx_sim.core.leases import Leases, PinnedPrefill
from pdx_sim.core.sequence import Sequence
from pdx_sim.core.timings import Timings
from pdx_sim.settings import SimSettings


@dataclass(slots=True, kw_only=True)
class EngineState:
    """One start of an engine."""

    settings: SimSettings
    counts: Counts
    pool: BlockPool
    leases: Leases
    timings: Timings
    stranded: dict[str, float] = field(default_factory=dict)
    """D legs that were cancelled while P may still write into their blocks: internal id -> when they are given up."""
    on_change: Callable[[], None] = lambda: None
    """Called whenever blocks were freed or pinned."""
    on_death: Callable[[], None] = lambda: None
    """Called when the EngineCore dies."""

    def now(self) -> float:
        """The engine's clock, in seconds."""
        return time.monotonic()

    def count_blocks(self) -> None:
        """Update the gauges of blocks."""
        self.counts.blocks_held_now = self.pool.held
        self.counts.blocks_pinned_now = self.leases.blocks
        self.counts.blocks_stranded_now = sum(map(self.pool.of, self.stranded))

    def free(self, internal_id: str) -> int:
        """Free the blocks of a sequence; return their number."""
        blocks = self.pool.free(internal_id)
        self.on_change()
        return blocks

    def pin(self, seq: Sequence) -> PinnedPrefill:
        """Keep the KV of a finished P leg for its D."""
        self.counts.prefills_finished += 1
        blocks = self.pool.of(seq.internal_id)
        return self.leases.pin(seq.internal_id, seq.digest, len(seq.prompt), blocks, self.now())

    def settle(self, internal_id: str) -> PinnedPrefill | None:
        """End the lease of a finished prefill and free its blocks; None if nothing was pinned."""
        pinned = self.leases.take(internal_id)
        if pinned is not None:
            self.free(internal_id)
        return pinned

    def strand(self, internal_id: str) -> None:
        """Keep the blocks of a cancelled D leg until P has written, at most for decoder_ttl_seconds."""
        self.stranded[internal_id] = self.now() + self.settings.decoder_ttl_seconds

    def free_stranded(self, internal_id: str) -> bool:
        """Free the blocks of a stranded D leg; False if it is not stranded."""
        if self.stranded.pop(internal_id, None) is None:
            return False
        self.free(internal_id)
        return True

    def give_up_stranded(self, now: float) -> None:
        """Free the blocks of every stranded D leg whose time is over, and count them as lost."""
        for internal_id in [each for each, ends_at in self.stranded.items() if ends_at <= now]:
            del self.stranded[internal_id]
            self.counts.decode_blocks_lost += self.free(internal_id)
