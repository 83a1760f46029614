"""NIXL push (`NixlPushConnector`): D registers its blocks with P, and P writes into them when it has finished.

Both legs share a push id: their internal ids without the random end. Either may arrive first. D waits without a
timeout, and the blocks that it has registered stay held after an abort until P has written: P may write at any time.
"""

import asyncio
from contextlib import suppress
from typing import Final

from pdx_sim.core.connector import LoadError, StrandedError
from pdx_sim.core.counters import Violation
from pdx_sim.core.leases import PinnedPrefill
from pdx_sim.core.sequence import KVParams, Sequence, push_id
from pdx_sim.core.tokens import Digest
from pdx_sim.transfer.connector import Heartbeats, KVConnector, Station, WaitingDecode, address_of
from pdx_sim.transfer.pending_writes import PendingWrites
from pdx_sim.transfer.side_channel import Message, PeerRefusedError, PeerUnreachableError

NEEDED: Final = ("remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id")
"""Keys whose absence is a KeyError in vLLM's scheduler."""


def kills_push(params: KVParams) -> bool:
    """Whether these D parameters end vLLM's EngineCore."""
    return any(params.get(name) is None for name in NEEDED)


class PushConnector(KVConnector):
    """Both sides of push."""

    def __init__(self, station: Station) -> None:
        super().__init__(station)
        self._registered: dict[str, WaitingDecode] = {}
        """P: the D that waits, by push id."""
        self._used: set[str] = set()
        """P: push ids under which both legs have arrived."""
        self._pending_writes = PendingWrites()
        self._heartbeats = Heartbeats(station)

    def received(self, seq: Sequence) -> None:
        """D sends heartbeats from now on. P does not find the transfer ID that they name, so nothing is renewed."""
        self._heartbeats.add(seq)

    def ended(self, seq: Sequence) -> None:
        """No heartbeats any more. P is not notified of a D leg that ended in the queue (push_worker.py)."""
        self._heartbeats.remove(seq.internal_id)

    async def load(self, seq: Sequence) -> None:
        """Register and wait for the write."""
        write = self._pending_writes.expect(seq.internal_id)
        registered = False
        try:
            with suppress(PeerUnreachableError):  # vLLM waits even if nothing listens on P's port
                await self._shake_hands(seq.params)
                registered = True
                # As in vLLM, a request that ends meanwhile does not take its registration back.
                if (sent := self._tasks.start(self._register(seq))) is not None:
                    await asyncio.shield(sent)
            registered = True
            seq.digest = await write
        except asyncio.CancelledError:
            if not registered or self._pending_writes.has_ended(seq.internal_id):
                raise
            self._station.strand(seq.internal_id)
            raise StrandedError(seq.internal_id) from None
        finally:
            self._pending_writes.discard(seq.internal_id)
            self._heartbeats.remove(seq.internal_id)

    async def _shake_hands(self, params: KVParams) -> None:
        """Only a handshake shows that P has restarted: with an older one, D registers and waits in vain."""
        try:
            await self._station.shake_hands(params)
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

    def finish(self, seq: Sequence) -> bool:
        """Pin the KV, answer the address of its blocks, and write if D waits already."""
        pinned = self._station.pin(seq)
        seq.answer_params = self._station.params_of(seq)
        decode = self._registered.pop(seq.push_id, None)
        self._station.counts.registered_now = len(self._registered)
        if decode is not None:
            self._transfer(pinned, decode)
        return True

    def refused(self, params: KVParams) -> None:
        """P does not receive a refusal."""
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
                return self._station.answer_heartbeat(message)
            case "reserve":
                return self._station.answer_reserve(message)
        return super().answer(message)

    def tick(self, now: float) -> None:
        """Give up stranded blocks and renew leases."""
        self._station.give_up_stranded(now)
        for params in self._heartbeats.due(now):
            self._tasks.start(self._heartbeats.send(params))

    def _answer_register(self, message: Message) -> Message:
        decode = WaitingDecode(**address_of(message))
        key = push_id(decode.request_id)
        pinned = self._station.leases.find(key)
        if key in self._used and not message["settles"]:
            self._station.counts.violate(Violation.ID_REUSED)
        elif pinned is not None:
            self._transfer(pinned, decode)
        else:
            self._registered[key] = decode
            self._station.counts.registered_now = len(self._registered)
        return {}

    def _transfer(self, pinned: PinnedPrefill, decode: WaitingDecode) -> None:
        self._used.add(push_id(pinned.internal_id))
        if pinned.blocks < decode.blocks:
            self._station.counts.violate(Violation.PUSH_MISMATCH)
        else:
            self._tasks.start(self._write(pinned, decode))

    async def _write(self, pinned: PinnedPrefill, decode: WaitingDecode) -> None:
        began = self._station.now()
        try:
            await self._station.write(pinned, decode)
        except (PeerUnreachableError, PeerRefusedError):
            self._station.counts.push_failures += 1
            self._station.counts.transfers_failed += 1
            return
        self._station.timings.moved(self._station.now() - began, pinned.tokens)
        if self._station.settle(pinned.internal_id) is not None:
            self._station.counts.pushed += 1

    def _answer_write(self, request_id: str, digest: Digest) -> Message:
        if self._pending_writes.complete(request_id, digest) or self._station.free_stranded(request_id):
            return {}
        return {"error": f"no leg waits for {request_id}"}
