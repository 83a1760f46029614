"""NIXL push (`NixlPushConnector`): D registers its blocks with P, and P writes into them when it has finished.

Both sides meet under D's and P's internal ids without their random ends, in either order. D waits without any time-out,
and blocks it has registered stay held after an abort until P has written into them: P may do so at any time.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import KVParams, Sequence, meeting_key
from pdx_sim.core.tasks import Tasks
from pdx_sim.core.tokens import Digest
from pdx_sim.transfer.connector import LoadError, Station, StrandedError
from pdx_sim.transfer.leases import Parked
from pdx_sim.transfer.pending_writes import Arrivals
from pdx_sim.transfer.side_channel import Message, PeerRefusedError, PeerUnreachableError

NEEDED: Final = ("remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id")
"""Keys whose absence is a KeyError in vLLM's scheduler."""


def kills_push(params: KVParams) -> bool:
    """Whether these D parameters end vLLM's EngineCore."""
    return any(params.get(name) is None for name in NEEDED)


@dataclass(frozen=True, slots=True)
class Registration:
    """A D that waits for a write."""

    request_id: str
    """D's internal id."""
    engine_id: str
    host: str
    port: int
    blocks: int


class PushConnector:
    """Both sides of push."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._tasks = Tasks()
        self._registered: dict[str, Registration] = {}
        """P: the D that waits under a meeting key."""
        self._used: set[str] = set()
        """P: meeting keys that have met."""
        self._arrivals = Arrivals()
        self._waiting: dict[str, KVParams] = {}
        """D: parameters of those legs, for the heartbeat."""
        self._next_beat = 0.0

    async def load(self, seq: Sequence) -> None:
        """Register and wait for the write."""
        arrival = self._arrivals.expect(seq.internal_id)
        registered = False
        try:
            with suppress(PeerUnreachableError):  # vLLM waits for a port that nobody listens on
                await self._greet(seq.params)
                registered = True
                self._waiting[seq.internal_id] = seq.params
                # As in vLLM, a request that ends meanwhile does not take its registration back.
                if (sent := self._tasks.start(self._register(seq))) is not None:
                    await asyncio.shield(sent)
            registered = True
            seq.digest = await arrival
        except asyncio.CancelledError:
            if not registered or self._arrivals.has_come(seq.internal_id):
                raise
            self._station.stranded[seq.internal_id] = self._station.now() + self._station.settings.decoder_ttl_seconds
            raise StrandedError(seq.internal_id) from None
        finally:
            self._arrivals.forget(seq.internal_id)
            self._waiting.pop(seq.internal_id, None)

    async def _greet(self, params: KVParams) -> None:
        """Only a handshake notices a refusal: over one made before P's restart, D registers into the void."""
        try:
            await self._station.greet(params)
        except PeerRefusedError as error:
            raise LoadError(str(error)) from error

    async def _register(self, seq: Sequence) -> None:
        settings = self._station.settings
        with suppress(PeerRefusedError, PeerUnreachableError):
            await self._station.call(
                seq.params,
                "register",
                request_id=seq.internal_id,
                settles=seq.max_tokens == 1,
                blocks=self._station.pool.of(seq.internal_id),
                reply={"engine_id": self._station.engine_id, "host": settings.side_channel_host},
                reply_port=self._station.port,
            )

    def finish(self, seq: Sequence) -> None:
        """Park, say where, and write if D waits already."""
        parked = self._station.park(seq)
        seq.answer_params = self._station.params_of(seq)
        registration = self._registered.pop(seq.key, None)
        self._station.counts.registered_now = len(self._registered)
        if registration is not None:
            self._meet(parked, registration)

    def dropped(self, seq: Sequence) -> None:
        """Nothing knows of it yet."""

    def refused(self, params: KVParams) -> None:
        """A refusal does not reach P."""
        self._station.counts.notices_lost += 1

    def answer(self, message: Message) -> Message:
        """Either side of the channel."""
        match message["op"]:
            case "handshake":
                return self._station.answer_handshake(message)
            case "register":
                return self._answer_register(message)
            case "write":
                return self._answer_write(str(message["request_id"]), str(message["digest"]))
            case "heartbeat":
                if self._station.leases.extend(str(message["request_id"]), self._station.now()):
                    self._station.counts.heartbeats += 1
                return {}
            case op:
                return {"error": f"no such op: {op}"}

    def tick(self, now: float) -> None:
        """Give up stranded blocks and renew leases."""
        stranded = self._station.stranded
        for internal_id in [each for each, gives_up_at in stranded.items() if gives_up_at <= now]:
            del stranded[internal_id]
            self._station.counts.decode_blocks_lost += self._station.free(internal_id)
        if now >= self._next_beat:
            self._next_beat = now + self._station.settings.lease_seconds / 6
            for params in self._waiting.values():
                self._tasks.start(self._beat(params))

    async def close(self) -> None:
        """Stop writes and heartbeats under way."""
        await self._tasks.close()

    def _answer_register(self, message: Message) -> Message:
        reply = message["reply"]
        registration = Registration(
            str(message["request_id"]),
            str(reply["engine_id"]),
            str(reply["host"]),
            int(message["reply_port"]),
            int(message["blocks"]),
        )
        key = meeting_key(registration.request_id)
        parked = self._station.leases.find(key)
        if key in self._used and not message["settles"]:
            self._station.counts.violate(Violation.ID_REUSED)
        elif parked is not None:
            self._meet(parked, registration)
        else:
            self._registered[key] = registration
            self._station.counts.registered_now = len(self._registered)
        return {}

    def _meet(self, parked: Parked, registration: Registration) -> None:
        self._used.add(meeting_key(parked.internal_id))
        if parked.blocks < registration.blocks:
            self._station.counts.violate(Violation.PUSH_MISMATCH)
        else:
            self._tasks.start(self._write(parked, registration))

    async def _write(self, parked: Parked, registration: Registration) -> None:
        message = {
            "op": "write",
            "engine_id": registration.engine_id,
            "request_id": registration.request_id,
            "digest": parked.digest,
        }
        began = self._station.now()
        await asyncio.sleep(self._station.settings.transfer_seconds)
        try:
            await self._station.channel.call(registration.host, registration.port, message)
        except (PeerUnreachableError, PeerRefusedError):
            self._station.counts.push_failures += 1
            self._station.counts.transfers_failed += 1
            return
        self._station.timings.moved(self._station.now() - began, parked.tokens)
        if self._station.settle(parked.internal_id) is not None:
            self._station.counts.pushed += 1

    def _answer_write(self, request_id: str, digest: Digest) -> Message:
        if self._arrivals.come(request_id, digest):
            return {}
        if self._station.stranded.pop(request_id, None) is not None:
            self._station.free(request_id)
        else:
            return {"error": f"nobody waits for {request_id}"}
        return {}

    async def _beat(self, params: KVParams) -> None:
        with suppress(PeerUnreachableError, PeerRefusedError):
            await self._station.call(params, "heartbeat", request_id=params["remote_request_id"])
