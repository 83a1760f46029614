"""Mooncake (`MooncakeConnector`): D sends P the address of its blocks, and P writes into them when it has finished.

Both legs carry a transfer id from the gateway, and either may arrive first. P remembers every D that has registered
under an id, also a D that only releases its KV, until a P leg under that id has ended. If a P leg is aborted, its D
continues to wait: only a timeout ends the wait, whatever is sent under the id afterwards.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pdx_sim.core.connector import LoadError, StrandedError
from pdx_sim.core.counters import Violation
from pdx_sim.core.leases import PinnedPrefill
from pdx_sim.core.sequence import KVParams, Leg, Sequence
from pdx_sim.core.tokens import Digest
from pdx_sim.transfer.bootstrap import BootstrapError, find_worker
from pdx_sim.transfer.connector import KVConnector, Station, WaitingDecode, address_of
from pdx_sim.transfer.pending_writes import PendingWrites
from pdx_sim.transfer.side_channel import Message, PeerRefusedError, PeerUnreachableError

NEEDED: Final = ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")
"""Keys without which vLLM lets a D leg wait for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration(WaitingDecode):
    """A D that P remembers under a transfer id."""

    digest: Digest
    """Of the prompt whose KV D needs."""
    ends_at: float
    """When P gives up, on its clock."""


class MooncakeConnector(KVConnector):
    """Both sides of Mooncake."""

    def __init__(self, station: Station) -> None:
        super().__init__(station)
        self._waiting: dict[str, list[Registration]] = {}
        """P: by transfer id. The first gets the KV; P forgets the others when it has finished, without an answer."""
        self._abandoned: list[Registration] = []
        """P: D legs whose P leg was aborted. Only a timeout ends their wait."""
        self._pinned: dict[str, str] = {}
        """P: internal id of each finished leg, by transfer id."""
        self._workers: dict[str, tuple[str, int]] = {}
        """D: address of each P's worker, by engine id. It is queried once."""
        self._pending_writes = PendingWrites()

    async def load(self, seq: Sequence) -> None:
        """Register with P and wait for the write. A leg that is cancelled before it has registered notifies P too."""
        if not all(seq.params.get(name) for name in NEEDED):
            await asyncio.Event().wait()
        registered = False
        try:
            await self._find(seq.params)
            write = self._pending_writes.expect(seq.internal_id)
            registered = True
            blocks = self._station.pool.of(seq.internal_id)
            # vLLM's worker registers even if the leg is aborted meanwhile, and waits even if P's worker is dead.
            register = self._try_to_register(seq.params, seq.internal_id, blocks, seq.digest)
            if (task := self._tasks.start(register)) is not None:
                await asyncio.shield(task)
            seq.digest = await write
        except BootstrapError as error:
            raise LoadError(str(error)) from error
        except asyncio.CancelledError:
            if not registered:
                self.refused(seq.params)
                raise
            if self._pending_writes.has_ended(seq.internal_id):
                raise
            self._station.strand(seq.internal_id)
            raise StrandedError(seq.internal_id) from None
        finally:
            self._pending_writes.discard(seq.internal_id)

    def ended(self, seq: Sequence) -> None:
        """A D leg that ended in the queue releases P's KV, as in vLLM (`request_finished`)."""
        if seq.leg is Leg.DECODE and not seq.load_begun:
            self.refused(seq.params)

    def finish(self, seq: Sequence) -> bool:
        """Pin the KV, answer no parameters, and write if D waits already. A leg that has stopped hands over nothing."""
        if seq.stopped:
            self.dropped(seq)
            return False
        transfer_id = str(seq.params.get("transfer_id"))
        if self._station.leases.get(self._pinned.get(transfer_id, "")) is not None:
            self._station.counts.violate(Violation.ID_REUSED)
        pinned = self._station.pin(seq)
        self._pinned[transfer_id] = pinned.internal_id
        for decode in self._waiting.pop(transfer_id, [])[:1]:
            self._transfer(transfer_id, pinned, decode)
        self._count()
        return True

    def dropped(self, seq: Sequence) -> None:
        """A D that waits for this P leg waits until its timeout."""
        self._abandoned += self._waiting.pop(str(seq.params.get("transfer_id")), [])

    def refused(self, params: KVParams) -> None:
        """Notify P that D does not need the KV."""
        if all(params.get(name) for name in NEEDED):
            self._tasks.start(self._give_up(params))

    def answer(self, message: Message) -> Message:
        """Either side of the channel."""
        request_id = str(message.get("request_id"))
        match message["op"]:
            case "register":
                self._answer_register(message)
            case "write":
                self._complete(request_id, str(message["digest"]))
            case "fail":
                self._complete(request_id, None)
            case "reserve":
                return self._station.answer_reserve(message)
            case _:
                return super().answer(message)
        return {}

    def tick(self, now: float) -> None:
        """Give up every wait that has lasted too long, on either side."""
        for decodes in (self._abandoned, *self._waiting.values()):
            for decode in [decode for decode in decodes if decode.ends_at <= now]:
                decodes.remove(decode)
                self._tasks.start(self._fail(decode))
        self._waiting = {transfer_id: decodes for transfer_id, decodes in self._waiting.items() if decodes}
        self._count()
        self._station.give_up_stranded(now)

    def _count(self) -> None:
        self._station.counts.registered_now = sum(map(len, self._waiting.values())) + len(self._abandoned)

    async def _find(self, params: KVParams) -> tuple[str, int]:
        engine_id = str(params["remote_engine_id"])
        if engine_id not in self._workers:
            self._workers[engine_id] = await find_worker(str(params["remote_bootstrap_addr"]), engine_id)
        return self._workers[engine_id]

    async def _register(self, params: KVParams, request_id: str = "", blocks: int = 0, digest: Digest = "") -> None:
        host, port = await self._find(params)
        message = {
            "op": "register",
            "engine_id": str(params["remote_engine_id"]),
            "transfer_id": str(params["transfer_id"]),
            "request_id": request_id,
            "blocks": blocks,
            "digest": digest,
            "reply": {"engine_id": self._station.engine_id, "host": self._station.settings.side_channel_host},
            "reply_port": self._station.port,
        }
        await self._station.channel.call(host, port, message)

    async def _try_to_register(self, params: KVParams, request_id: str, blocks: int, digest: Digest) -> None:
        with suppress(PeerUnreachableError, PeerRefusedError):
            await self._register(params, request_id, blocks, digest)

    async def _give_up(self, params: KVParams) -> None:
        with suppress(BootstrapError, PeerUnreachableError, PeerRefusedError):
            await self._register(params)

    def _answer_register(self, message: Message) -> None:
        decode = Registration(
            **address_of(message),
            digest=str(message["digest"]),
            ends_at=self._station.now() + self._station.settings.decoder_ttl_seconds,
        )
        transfer_id = str(message["transfer_id"])
        pinned = self._station.leases.get(self._pinned.get(transfer_id, ""))
        if pinned is not None:
            self._transfer(transfer_id, pinned, decode)
        else:
            self._waiting.setdefault(transfer_id, []).append(decode)
        self._count()

    def _transfer(self, transfer_id: str, pinned: PinnedPrefill, decode: Registration) -> None:
        del self._pinned[transfer_id]
        if decode.blocks <= pinned.blocks and decode.blocks:
            if decode.digest != pinned.digest:  # D caches it as the KV of its own prompt, even if the leg is cancelled
                self._station.counts.violate(Violation.FOREIGN_KV)
            self._tasks.start(self._write(pinned, decode))
            return
        if self._station.settle(pinned.internal_id) is not None:
            self._station.counts.released += 1
        if decode.blocks:
            self._tasks.start(self._fail(decode))

    async def _write(self, pinned: PinnedPrefill, decode: Registration) -> None:
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

    async def _fail(self, decode: Registration) -> None:
        with suppress(PeerUnreachableError, PeerRefusedError):
            await self._station.send(decode, "fail", request_id=decode.request_id)

    def _complete(self, request_id: str, digest: Digest | None) -> None:
        failure = LoadError("P has fewer blocks than D needs, or gave up waiting")
        if not self._pending_writes.complete(request_id, failure if digest is None else digest):
            self._station.free_stranded(request_id)
