"""What pull and push share: who a peer is, the P side's parked KV, and the seam towards the engine's core."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pdx_sim.core.blocks import BlockPool
from pdx_sim.core.counters import Counts
from pdx_sim.core.sequence import KVParams, Sequence
from pdx_sim.core.timings import Timings
from pdx_sim.settings import SimSettings
from pdx_sim.transfer.leases import Leases, Parked
from pdx_sim.transfer.side_channel import Message, SideChannel


class LoadError(Exception):
    """The KV of a D leg did not arrive; what follows is D's on_load_failure."""


class MissError(Exception):
    """There is no KV to load: the engine computes it."""


class StrandedError(Exception):
    """A D leg has gone while P still owns the right to write into its blocks: they stay held."""


@dataclass(slots=True)
class Station:
    """One start of an engine as its connector sees it."""

    settings: SimSettings
    counts: Counts
    pool: BlockPool
    engine_id: str
    leases: Leases
    timings: Timings
    port: int = 0
    """The side channel's port in force."""
    channel: SideChannel = field(init=False)
    known: set[str] = field(default_factory=set)
    """Engine ids of peers with a handshake."""
    stranded: dict[str, float] = field(default_factory=dict)
    """D legs that have gone while P may still write into their blocks, and when those are given up."""
    on_change: Callable[[], None] = lambda: None
    """Called whenever blocks were freed or parked."""
    on_death: Callable[[], None] = lambda: None
    """Called when the EngineCore dies."""

    def now(self) -> float:
        """The engine's clock, in seconds."""
        return time.monotonic()

    def free(self, internal_id: str) -> int:
        """Free the blocks of a sequence; says how many."""
        blocks = self.pool.free(internal_id)
        self.on_change()
        return blocks

    def settle(self, internal_id: str) -> Parked | None:
        """End the lease of a finished prefill and free its blocks; None when nothing was parked."""
        parked = self.leases.take(internal_id)
        if parked is not None:
            self.free(internal_id)
        return parked

    async def greet(self, params: KVParams) -> None:
        """Shake hands with P unless done before. Raises PeerUnreachableError or PeerRefusedError."""
        peer = str(params["remote_engine_id"])
        if peer in self.known:
            return
        await self.call(
            params,
            "handshake",
            mode=self.settings.mode,
            version=self.settings.version,
            model=self.settings.model,
        )
        self.known.add(peer)

    async def call(self, params: KVParams, op: str, **fields: Any) -> Message:
        """Send P, as a D leg's parameters name it, a message. Raises PeerUnreachableError or PeerRefusedError."""
        message = {"op": op, "engine_id": str(params["remote_engine_id"]), **fields}
        return await self.channel.call(str(params["remote_host"]), int(params["remote_port"]), message)

    def answer_handshake(self, message: Message) -> Message:
        """Grant or refuse a handshake, as vLLM's compatibility hash does."""
        for name, own in (
            ("mode", self.settings.mode),
            ("version", self.settings.version),
            ("model", self.settings.model),
        ):
            if message[name] != own:
                self.counts.handshakes_refused += 1
                return {"error": f"{name} is {own}, not {message[name]}"}
        self.counts.handshakes += 1
        return {}

    def park(self, seq: Sequence) -> Parked:
        """Keep the KV of a finished P leg for its D."""
        self.counts.prefills_finished += 1
        blocks = self.pool.of(seq.internal_id)
        return self.leases.park(seq.internal_id, seq.digest, len(seq.prompt), blocks, self.now())

    def params_of(self, seq: Sequence) -> KVParams:
        """What P answers about its parked KV."""
        blocks = self.pool.of(seq.internal_id)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, blocks + 1))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": seq.internal_id,
            "remote_host": self.settings.side_channel_host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(seq.prompt),
            "remote_blocks_expiry_time": None,
            "transfer_mode": self.settings.mode.value,
            "remote_prefill_cached_tokens": 0,
        }


class KVConnector(Protocol):
    """One transfer mode, both roles."""

    async def load(self, seq: Sequence) -> None:
        """Bring a D leg's KV into its blocks and set its digest, and `cached` where it is not the whole prompt's.

        Raises MissError or LoadError; when cancelled, StrandedError.
        """

    def finish(self, seq: Sequence) -> None:
        """Park the KV of a P leg."""

    def dropped(self, seq: Sequence) -> None:
        """A P leg has ended before it had finished."""

    def refused(self, params: KVParams) -> None:
        """D's validation refused a leg with these parameters."""

    def answer(self, message: Message) -> Message:
        """Answer a peer; KeyError, TypeError or ValueError when the message is malformed."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    async def close(self) -> None:
        """Stop whatever runs in the background, without telling peers."""
