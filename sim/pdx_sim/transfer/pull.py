"""NIXL pull (`NixlConnector`): P pins its KV and names the blocks; D reads them, and P frees them.

P's blocks are freed by a read, by a release notice from a D that does not need them, or at the end of the lease. The
notice for a D leg that validation refused is sent only if D and P have shaken hands before.
"""

import asyncio
from contextlib import suppress

from pdx_sim.core.connector import LoadError
from pdx_sim.core.counters import Violation
from pdx_sim.core.leases import Settled
from pdx_sim.core.sequence import KVParams, Leg, Sequence
from pdx_sim.transfer.connector import Heartbeats, KVConnector, Station
from pdx_sim.transfer.side_channel import Message, PeerRefusedError, PeerUnreachableError

_ADDRESS = ("remote_engine_id", "remote_host", "remote_port", "remote_request_id")


def is_complete(params: KVParams) -> bool:
    """Whether a D leg's parameters contain the address of P's blocks."""
    return all(params.get(name) is not None for name in _ADDRESS)


def kills_pull(params: KVParams) -> bool:
    """Whether these D parameters trip the assertion that ends vLLM's EngineCore."""
    groups = params.get("remote_block_ids")
    return not isinstance(groups, list) or not any(groups)


class PullConnector(KVConnector):
    """Both sides of pull."""

    def __init__(self, station: Station) -> None:
        super().__init__(station)
        self._heartbeats = Heartbeats(station)

    def received(self, seq: Sequence) -> None:
        """Renew P's lease from now on, also while the leg is queued."""
        self._heartbeats.add(seq)

    def ended(self, seq: Sequence) -> None:
        """A D leg that ended in the queue releases P's blocks, as in vLLM (pull_scheduler.py `request_finished`)."""
        self._heartbeats.remove(seq.internal_id)
        if seq.leg is Leg.DECODE and not seq.load_begun and is_complete(seq.params):
            self._tasks.start(self._release(seq.params))

    async def load(self, seq: Sequence) -> None:
        """Read P's blocks. A D leg that is cancelled before it has read them releases them."""
        if not is_complete(seq.params):
            await asyncio.Event().wait()
        over = False
        try:
            await self._station.shake_hands(seq.params)
            began = self._station.now()
            await self._move(seq)
            answer = await self._station.call(seq.params, "pull", request_id=seq.params["remote_request_id"])
        except (PeerUnreachableError, PeerRefusedError) as error:
            over = True
            self._station.counts.transfers_failed += 1
            self._station.handshaken.discard(str(seq.params["remote_engine_id"]))
            raise LoadError(str(error)) from error
        else:
            over = True
        finally:
            self._heartbeats.remove(seq.internal_id)
            if not over:
                self._tasks.start(self._release(seq.params))
        self._station.timings.moved(self._station.now() - began, len(seq.prompt))
        seq.digest = str(answer["digest"])

    async def _move(self, seq: Sequence) -> None:
        async def reserve(size: float) -> Message:
            return await self._station.call(seq.params, "reserve", bytes=size)

        tokens = len(seq.prompt) - seq.found
        await self._station.move(tokens, str(seq.params["remote_engine_id"]), reserve, seq.slowness)

    def finish(self, seq: Sequence) -> bool:
        """Pin the KV and answer the address of its blocks."""
        self._station.pin(seq)
        seq.answer_params = self._station.params_of(seq)
        return True

    def refused(self, params: KVParams) -> None:
        """Send P a release notice, if there is a handshake."""
        if is_complete(params) and str(params["remote_engine_id"]) in self._station.handshaken:
            self._tasks.start(self._release(params))
        else:
            self._station.counts.notices_lost += 1

    def answer(self, message: Message) -> Message:
        """P's side of the channel."""
        match message["op"]:
            case "handshake":
                return self._station.answer_handshake(message)
            case "pull":
                return self._answer_pull(str(message["request_id"]))
            case "release":
                if self._station.settle(str(message["request_id"])) is not None:
                    self._station.counts.released += 1
                return {}
            case "heartbeat":
                return self._station.answer_heartbeat(message)
            case "reserve":
                return self._station.answer_reserve(message)
        return super().answer(message)

    def tick(self, now: float) -> None:
        """Renew the leases of the D legs that wait."""
        for params in self._heartbeats.due(now):
            self._tasks.start(self._heartbeats.send(params))

    def _answer_pull(self, request_id: str) -> Message:
        pinned = self._station.settle(request_id)
        if pinned is not None:
            self._station.counts.pulled += 1
            return {"digest": pinned.digest, "tokens": pinned.tokens}
        match self._station.leases.settled(request_id):
            case Settled.TAKEN:
                violation = Violation.READ_TWICE
            case Settled.EXPIRED:
                violation = Violation.READ_LATE
            case _:
                violation = Violation.READ_MISSING
        self._station.counts.violate(violation)
        return {"error": f"no blocks of {request_id}: {violation}"}

    async def _release(self, params: KVParams) -> None:
        with suppress(PeerUnreachableError, PeerRefusedError):
            await self._station.shake_hands(params)
            await self._station.call(params, "release", request_id=params["remote_request_id"])
