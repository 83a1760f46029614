"""Mooncake (`MooncakeConnector`): D tells P where its blocks are, and P writes into them when it has finished.

Both meet under a transfer id of the gateway's, in either order. P keeps a place for every D that has told it of an id,
also for one that only gives its KV up, until a P leg under that id has ended. A P leg that is aborted leaves such a D
waiting: nothing but a time-out wakes it, whatever is sent under the id afterwards.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import KVParams, Sequence
from pdx_sim.core.tasks import Tasks
from pdx_sim.core.tokens import Digest
from pdx_sim.transfer.bootstrap import BootstrapError, find_worker
from pdx_sim.transfer.connector import LoadError, Station, StrandedError
from pdx_sim.transfer.leases import Parked
from pdx_sim.transfer.pending_writes import Arrivals
from pdx_sim.transfer.side_channel import Message, PeerRefusedError, PeerUnreachableError

NEEDED = ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")
"""Keys without which vLLM parks a D leg for ever."""


@dataclass(frozen=True, slots=True)
class Place:
    """What P keeps for a D that waits under a transfer id."""

    request_id: str
    """D's internal id."""
    engine_id: str
    host: str
    port: int
    blocks: int
    """0: D only gives up what P has finished."""
    digest: Digest
    """Of the KV that D wants."""
    until: float


class MeetConnector:
    """Both sides of Mooncake."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._tasks = Tasks()
        self._places: dict[str, Place] = {}
        """P: by transfer id."""
        self._forsaken: list[Place] = []
        """P: places whose P leg was aborted: only time ends them."""
        self._parked: dict[str, str] = {}
        """P: internal id of what was finished, by transfer id."""
        self._workers: dict[str, tuple[str, int]] = {}
        """D: address of a P's worker, by engine id; never asked again."""
        self._arrivals = Arrivals()

    async def load(self, seq: Sequence) -> None:
        """Tell P and wait for the write. A D leg that goes before it has told P still tells it that it has gone."""
        if not all(seq.params.get(name) for name in NEEDED):
            await asyncio.Event().wait()
        told = False
        try:
            await self._find(seq.params)
            arrival = self._arrivals.expect(seq.internal_id)
            told = True
            with suppress(PeerUnreachableError, PeerRefusedError):  # vLLM waits for a worker that is gone
                await self._tell(seq.params, seq.internal_id, self._station.pool.of(seq.internal_id), seq.digest)
            seq.digest = await arrival
        except BootstrapError as error:
            raise LoadError(str(error)) from error
        except asyncio.CancelledError:
            if not told:
                self.refused(seq.params)
                raise
            if self._arrivals.has_come(seq.internal_id):
                raise
            self._station.stranded[seq.internal_id] = self._station.now() + self._station.settings.decoder_ttl_seconds
            raise StrandedError(seq.internal_id) from None
        finally:
            self._arrivals.forget(seq.internal_id)

    def finish(self, seq: Sequence) -> None:
        """Park, say nothing, and write if D waits already."""
        transfer_id = str(seq.params.get("transfer_id"))
        if self._station.leases.get(self._parked.get(transfer_id, "")) is not None:
            self._station.counts.violate(Violation.ID_REUSED)
        parked = self._station.park(seq)
        self._parked[transfer_id] = parked.internal_id
        place = self._places.pop(transfer_id, None)
        if place is not None:
            self._meet(transfer_id, parked, place)
        self._count()

    def dropped(self, seq: Sequence) -> None:
        """A D that waits for this P leg has nobody left to wake it."""
        place = self._places.pop(str(seq.params.get("transfer_id")), None)
        if place is not None:
            self._forsaken.append(place)

    def refused(self, params: KVParams) -> None:
        """D tells P that it needs the KV no more."""
        if all(params.get(name) for name in NEEDED):
            self._tasks.start(self._give_up(params))

    def answer(self, message: Message) -> Message:
        """Either side of the channel."""
        request_id = str(message.get("request_id"))
        match message["op"]:
            case "tell":
                self._answer_tell(message)
            case "write":
                self._arrive(request_id, str(message["digest"]))
            case "fail":
                self._arrive(request_id, None)
            case op:
                return {"error": f"no such op: {op}"}
        return {}

    def tick(self, now: float) -> None:
        """Give up what has waited for too long, on either side."""
        for transfer_id in [each for each, place in self._places.items() if place.until <= now]:
            self._tasks.start(self._fail(self._places.pop(transfer_id)))
        for place in [place for place in self._forsaken if place.until <= now]:
            self._forsaken.remove(place)
            self._tasks.start(self._fail(place))
        self._count()
        stranded = self._station.stranded
        for internal_id in [each for each, gives_up_at in stranded.items() if gives_up_at <= now]:
            del stranded[internal_id]
            self._station.counts.decode_blocks_lost += self._station.free(internal_id)

    async def close(self) -> None:
        """Stop what is under way."""
        await self._tasks.close()

    def _count(self) -> None:
        self._station.counts.registered_now = len(self._places) + len(self._forsaken)

    async def _find(self, params: KVParams) -> tuple[str, int]:
        engine_id = str(params["remote_engine_id"])
        if engine_id not in self._workers:
            self._workers[engine_id] = await find_worker(str(params["remote_bootstrap_addr"]), engine_id)
        return self._workers[engine_id]

    async def _tell(self, params: KVParams, request_id: str = "", blocks: int = 0, digest: Digest = "") -> None:
        host, port = await self._find(params)
        message = {
            "op": "tell",
            "engine_id": str(params["remote_engine_id"]),
            "transfer_id": str(params["transfer_id"]),
            "request_id": request_id,
            "blocks": blocks,
            "digest": digest,
            "reply": {"engine_id": self._station.engine_id, "host": self._station.settings.side_channel_host},
            "reply_port": self._station.port,
        }
        await self._station.channel.call(host, port, message)

    async def _give_up(self, params: KVParams) -> None:
        with suppress(BootstrapError, PeerUnreachableError, PeerRefusedError):
            await self._tell(params)

    def _answer_tell(self, message: Message) -> None:
        settings, reply = self._station.settings, message["reply"]
        place = Place(
            str(message["request_id"]),
            str(reply["engine_id"]),
            str(reply["host"]),
            int(message["reply_port"]),
            int(message["blocks"]),
            str(message["digest"]),
            self._station.now() + settings.decoder_ttl_seconds,
        )
        transfer_id = str(message["transfer_id"])
        parked = self._station.leases.get(self._parked.get(transfer_id, ""))
        if parked is not None:
            self._meet(transfer_id, parked, place)
        else:
            self._places[transfer_id] = place
        self._count()

    def _meet(self, transfer_id: str, parked: Parked, place: Place) -> None:
        del self._parked[transfer_id]
        if place.blocks <= parked.blocks and place.blocks:
            if place.digest != parked.digest:  # D caches it as the KV of its own prompt, also when nobody waits there
                self._station.counts.violate(Violation.FOREIGN_KV)
            self._tasks.start(self._write(parked, place))
            return
        if self._station.settle(parked.internal_id) is not None:
            self._station.counts.released += 1
        if place.blocks:
            self._tasks.start(self._fail(place))

    async def _write(self, parked: Parked, place: Place) -> None:
        await asyncio.sleep(self._station.settings.transfer_seconds)
        if await self._send(place, op="write", digest=parked.digest):
            if self._station.settle(parked.internal_id) is not None:
                self._station.counts.pushed += 1
        else:
            self._station.counts.push_failures += 1

    async def _fail(self, place: Place) -> None:
        await self._send(place, op="fail")

    async def _send(self, place: Place, **fields: str) -> bool:
        message = {"engine_id": place.engine_id, "request_id": place.request_id, **fields}
        try:
            await self._station.channel.call(place.host, place.port, message)
        except (PeerUnreachableError, PeerRefusedError):
            return False
        return True

    def _arrive(self, request_id: str, digest: Digest | None) -> None:
        nothing = LoadError("P has less than was asked for, or gave up waiting")
        if self._arrivals.come(request_id, nothing if digest is None else digest):
            return
        if self._station.stranded.pop(request_id, None) is not None:
            self._station.free(request_id)
