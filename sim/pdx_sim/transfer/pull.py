"""NIXL pull (`NixlConnector`): P parks its KV and names the blocks; D reads them, and P frees them.

What frees P's blocks: a read, a release notice of a D that needs them no more, or the end of the lease. A notice of a
D leg that validation refused travels only where D and P have shaken hands before.
"""

import asyncio
from contextlib import suppress

from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import KVParams, Sequence
from pdx_sim.core.tasks import Tasks
from pdx_sim.transfer.connector import LoadError, Station
from pdx_sim.transfer.leases import Settled
from pdx_sim.transfer.side_channel import Message, PeerRefusedError, PeerUnreachableError

_ADDRESS = ("remote_engine_id", "remote_host", "remote_port", "remote_request_id")


def is_complete(params: KVParams) -> bool:
    """Whether a D leg's parameters say where P's blocks are."""
    return all(params.get(name) is not None for name in _ADDRESS)


def kills_pull(params: KVParams) -> bool:
    """Whether these D parameters trip the assertion that ends vLLM's EngineCore."""
    groups = params.get("remote_block_ids")
    return not isinstance(groups, list) or not any(groups)


class PullConnector:
    """Both sides of pull."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._tasks = Tasks()
        self._waiting: dict[str, KVParams] = {}
        """D legs whose KV has not come, by internal id: P's lease is renewed for them."""
        self._next_beat = 0.0

    async def load(self, seq: Sequence) -> None:
        """Read P's blocks. A D leg that goes before it has read them releases them."""
        if not is_complete(seq.params):
            await asyncio.Event().wait()
        self._waiting[seq.internal_id] = seq.params
        over = False
        try:
            await self._station.greet(seq.params)
            began = self._station.now()
            await asyncio.sleep(self._station.settings.transfer_seconds * seq.slowness)
            answer = await self._station.call(seq.params, "pull", request_id=seq.params["remote_request_id"])
        except (PeerUnreachableError, PeerRefusedError) as error:
            over = True
            self._station.counts.transfers_failed += 1
            self._station.known.discard(str(seq.params["remote_engine_id"]))
            raise LoadError(str(error)) from error
        else:
            over = True
        finally:
            del self._waiting[seq.internal_id]
            if not over:
                self._tasks.start(self._release(seq.params))
        self._station.timings.moved(self._station.now() - began, len(seq.prompt))
        seq.digest = str(answer["digest"])

    def finish(self, seq: Sequence) -> None:
        """Park, and say where."""
        self._station.park(seq)
        seq.answer_params = self._station.params_of(seq)

    def dropped(self, seq: Sequence) -> None:
        """Nothing knows of it yet."""

    def refused(self, params: KVParams) -> None:
        """Tell P that its blocks are not needed, if there is a handshake to tell it over."""
        if is_complete(params) and str(params["remote_engine_id"]) in self._station.known:
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
                if self._station.leases.extend(str(message["request_id"]), self._station.now()):
                    self._station.counts.heartbeats += 1
                return {}
            case op:
                return {"error": f"no such op: {op}"}

    def tick(self, now: float) -> None:
        """Renew the leases of D legs that wait."""
        if now >= self._next_beat:
            self._next_beat = now + self._station.settings.lease_seconds / 6
            for params in self._waiting.values():
                self._tasks.start(self._beat(params))

    async def close(self) -> None:
        """Stop notices and heartbeats under way."""
        await self._tasks.close()

    def _answer_pull(self, request_id: str) -> Message:
        parked = self._station.settle(request_id)
        if parked is not None:
            self._station.counts.pulled += 1
            return {"digest": parked.digest, "tokens": parked.tokens}
        match self._station.leases.settled(request_id):
            case Settled.TAKEN:
                violation = Violation.READ_TWICE
            case Settled.EXPIRED:
                violation = Violation.READ_LATE
            case _:
                violation = Violation.READ_UNKNOWN
        self._station.counts.violate(violation)
        return {"error": f"no blocks of {request_id}: {violation}"}

    async def _release(self, params: KVParams) -> None:
        with suppress(PeerUnreachableError, PeerRefusedError):
            await self._station.greet(params)
            await self._station.call(params, "release", request_id=params["remote_request_id"])

    async def _beat(self, params: KVParams) -> None:
        with suppress(PeerUnreachableError, PeerRefusedError):
            if str(params["remote_engine_id"]) in self._station.known:
                await self._station.call(params, "heartbeat", request_id=params["remote_request_id"])
