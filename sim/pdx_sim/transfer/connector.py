"""What the connectors share: the engine's state with its side channel, and the interface towards engine and API."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pdx_api.vllm.versions import abilities, minor
from pdx_sim.core.leases import PinnedPrefill
from pdx_sim.core.links import PIECES, Link
from pdx_sim.core.sequence import KVParams, Leg, Sequence
from pdx_sim.core.state import EngineState
from pdx_sim.core.tasks import Tasks
from pdx_sim.transfer.side_channel import Message, PeerRefusedError, PeerUnreachableError, SideChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDecode:
    """A D that waits for a write of P, as P remembers it."""

    request_id: str
    """D's internal id."""
    engine_id: str
    host: str
    port: int
    blocks: int
    """0: D only releases the KV that P has finished."""


def address_of(message: Message) -> dict[str, Any]:
    """The fields of a `WaitingDecode` in a D's message `register`."""
    reply = message["reply"]
    return {
        "request_id": str(message["request_id"]),
        "engine_id": str(reply["engine_id"]),
        "host": str(reply["host"]),
        "port": int(message["reply_port"]),
        "blocks": int(message["blocks"]),
    }


@dataclass(slots=True, kw_only=True)
class Station(EngineState):
    """One start of an engine, with its identity and its connections to peers."""

    engine_id: str
    port: int = 0
    """The side channel's port in force."""
    channel: SideChannel = field(init=False)
    handshaken: set[str] = field(default_factory=set)
    """Engine ids of the peers that this engine has shaken hands with."""
    link: Link | None = field(init=False)
    """The engine's own link; None: unlimited."""
    pair_links: dict[str, Link] = field(default_factory=dict)
    """The link to each peer, by its engine id, on the side that drives the transfers."""

    def __post_init__(self) -> None:
        rate = self.settings.engine_gigabytes_per_second
        self.link = Link(rate) if rate else None

    async def move(self, tokens: int, peer: str = "", reserve: "Reserve | None" = None, slowness: float = 1.0) -> None:
        """Take the time that the KV of this many tokens needs on this engine's link, the pair's and the peer's.

        `reserve` sends a reservation to the peer; None: there is no peer. Raises PeerUnreachableError or
        PeerRefusedError.
        """
        await asyncio.sleep(self.settings.transfer_seconds * slowness)
        links = [link for link in (self.link, self._pair_link(peer)) if link is not None]
        if not links:
            return
        size = tokens * self.settings.kv_bytes_per_token * slowness / PIECES
        for _ in range(PIECES):
            now = self.now()
            ends = max(link.reserve(size, now) for link in links)
            if reserve is not None and self.link is not None:
                ends = max(ends, now + float((await reserve(size))["seconds"]))
            await asyncio.sleep(max(0.0, ends - self.now()))

    def _pair_link(self, peer: str) -> Link | None:
        rate = self.settings.pair_gigabytes_per_second
        if not rate or not peer:
            return None
        return self.pair_links.setdefault(peer, Link(rate))

    def answer_reserve(self, message: Message) -> Message:
        """Reserve a piece of a peer's transfer on this engine's link; answer how long it takes from now on."""
        if self.link is None:
            return {"seconds": 0.0}
        now = self.now()
        return {"seconds": self.link.reserve(float(message["bytes"]), now) - now}

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

    async def write(self, pinned: PinnedPrefill, decode: WaitingDecode) -> None:
        """Write the KV of a prefill into a D's blocks. Raises PeerUnreachableError or PeerRefusedError."""

        async def reserve(size: float) -> Message:
            return await self.send(decode, "reserve", bytes=size)

        await self.move(pinned.tokens, decode.engine_id, reserve)
        await self.send(decode, "write", request_id=decode.request_id, digest=pinned.digest)

    async def send(self, decode: WaitingDecode, op: str, **fields: Any) -> Message:
        """Send a message to a D that waits. Raises PeerUnreachableError or PeerRefusedError."""
        message = {"op": op, "engine_id": decode.engine_id, **fields}
        return await self.channel.call(decode.host, decode.port, message)

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
        has = abilities(minor(self.settings.version))
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
            **({"remote_prefill_cached_tokens": seq.found} if has.answers_hits else {}),
            **({"remote_registration_generation": 1} if has.registers else {}),
        }


Reserve = Callable[[float], Awaitable[Message]]
"""Sends the peer the bytes of a piece; returns its answer."""


class KVConnector:
    """One KV connector, both roles, as core (`KVMover`), engine and API call it.

    What it does by itself is right for connectors between peers, in which only D legs load and nothing is saved.
    """

    finds_by_prompt = False

    def __init__(self, station: Station) -> None:
        self._station = station
        self._tasks = Tasks()

    def received(self, seq: Sequence) -> None:
        """Nothing, unless the connector renews leases."""

    def ended(self, seq: Sequence) -> None:
        """Nothing, unless the connector renews leases or a peer waits."""

    async def load(self, seq: Sequence) -> None:
        """See `KVMover`."""
        raise NotImplementedError

    async def save(self, seq: Sequence) -> None:
        """Nothing: KV stays in P's blocks."""

    def finish(self, seq: Sequence) -> bool:
        """See `KVMover`."""
        raise NotImplementedError

    def dropped(self, seq: Sequence) -> None:
        """Nothing, unless a D is to be told."""

    def refused(self, params: KVParams) -> None:
        """D's validation refused a leg with these parameters. Nothing, unless P is to be told."""

    def answer(self, message: Message) -> Message:
        """Answer a peer; KeyError, TypeError or ValueError when the message is malformed."""
        return {"error": f"no such op: {message['op']}"}

    def tick(self, now: float) -> None:
        """Do what is due at `now`."""

    async def close(self) -> None:
        """Stop all messages, transfers and saves under way without notifying peers."""
        await self._tasks.close()


class Heartbeats:
    """D renews P's leases for its legs from their arrival until their KV has arrived, also while they are queued.

    vLLM: nixl/base_scheduler.py `on_new_request`, base_worker.py `_send_heartbeats`. The first heartbeat to a peer only
    shakes hands. P looks the id up that D's parameters name (`_handle_heartbeat`). In pull this is P's own id. In push
    it is the transfer ID of both legs, which P does not find: the lease is not renewed.
    """

    _NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")
    _SHARE_OF_LEASE = 6

    def __init__(self, station: Station) -> None:
        self._station = station
        self._legs: dict[str, KVParams] = {}
        """By D's internal id."""
        self._next = 0.0

    def add(self, seq: Sequence) -> None:
        """A sequence has arrived. Only D legs whose parameters are complete are renewed."""
        if seq.leg is Leg.DECODE and all(seq.params.get(name) is not None for name in self._NEEDED):
            self._legs[seq.internal_id] = seq.params

    def remove(self, internal_id: str) -> None:
        """The KV of a leg has arrived, or the leg has ended."""
        self._legs.pop(internal_id, None)

    def due(self, now: float) -> list[KVParams]:
        """Parameters of the legs whose leases are to be renewed now."""
        if now < self._next:
            return []
        self._next = now + self._station.settings.lease_seconds / self._SHARE_OF_LEASE
        return list(self._legs.values())

    async def send(self, params: KVParams) -> None:
        """Renew one lease."""
        with suppress(PeerUnreachableError, PeerRefusedError):
            if str(params["remote_engine_id"]) in self._station.handshaken:
                await self._station.call(params, "heartbeat", request_id=params["remote_request_id"])
            else:
                await self._station.shake_hands(params)
