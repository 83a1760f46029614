"""What the connectors share: the engine's state with its side channel, and the interface towards engine and API."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from pdx_sim.core.connector import KVMover
from pdx_sim.core.sequence import KVParams, Sequence
from pdx_sim.core.state import EngineState
from pdx_sim.transfer.side_channel import Message, SideChannel


@dataclass(slots=True, kw_only=True)
class Station(EngineState):
    """One start of an engine, with its identity and its connections to peers."""

    engine_id: str
    port: int = 0
    """The side channel's port in force."""
    channel: SideChannel = field(init=False)
    handshaken: set[str] = field(default_factory=set)
    """Engine ids of the peers that this engine has shaken hands with."""

    async def shake_hands(self, params: KVParams) -> None:
        """Shake hands with P unless done before. Raises PeerUnreachableError or PeerRefusedError."""
        peer = str(params["remote_engine_id"])
        if peer in self.handshaken:
            return
        await self.call(
            params,
            "handshake",
            mode=self.settings.mode,
            version=self.settings.version,
            model=self.settings.model,
        )
        self.handshaken.add(peer)

    async def call(self, params: KVParams, op: str, **fields: Any) -> Message:
        """Send a message to the P that a D leg's parameters name.

        Raises PeerUnreachableError or PeerRefusedError.
        """
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

    def answer_heartbeat(self, message: Message) -> Message:
        """Extend the lease of a prefill that a D waits for."""
        if self.leases.extend(str(message["request_id"]), self.now()):
            self.counts.heartbeats += 1
        return {}

    def params_of(self, seq: Sequence) -> KVParams:
        """The kv_transfer_params that P answers for its pinned KV."""
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


class PeerConnector:
    """Base of the connectors that move KV between peers: only D legs load, and nothing is saved."""

    finds_by_prompt = False

    async def save(self, seq: Sequence) -> None:
        """Nothing: KV stays in P's blocks."""


class KVConnector(KVMover, Protocol):
    """One KV connector, both roles, as engine and API call it."""

    def refused(self, params: KVParams) -> None:
        """D's validation refused a leg with these parameters."""

    def answer(self, message: Message) -> Message:
        """Answer a peer; KeyError, TypeError or ValueError when the message is malformed."""

    def tick(self, now: float) -> None:
        """Do what is due at `now`."""

    async def close(self) -> None:
        """Stop all background tasks without notifying peers."""
