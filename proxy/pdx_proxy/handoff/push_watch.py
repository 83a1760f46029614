"""Watches a push between P's end and D's first event: neither engine reports a transfer that has failed."""

import asyncio
from typing import Final

from pdx_api.vllm_metrics import read_waiting
from pdx_proxy.endpoints.endpoint import pairing
from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.failures import KVOverdue, PrefillEnded
from pdx_proxy.handoff.transfer import Transfer
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import DeadlineExceeded, LostConnection

_POLL_SECONDS: Final = 1.0
_LOST: Final = "lost before its KV was known to have arrived"


class PushWatch:
    """Interrupts D's wait if P is lost, or if D does not show in time that it has produced an output.

    P's lease ends soon after the deadline. A D that has queued the request until then would wait for ever. Where no
    event shows that D has the KV (see payload/first_event.py), its metrics do: once no request waits there. Where these
    do not either, D's wait ends only when its pair is found to move no KV, or when a lease has ended at P.
    """

    __slots__ = (
        "_check",
        "_connection",
        "_decode_leg",
        "_prefilled",
        "_search",
        "_sent",
        "_timer",
        "_transfer",
        "died",
    )

    def __init__(self, transfer: Transfer, decode_leg: Leg) -> None:
        self._transfer = transfer
        self._decode_leg = decode_leg
        self._prefilled: float | None = None
        """When P finished."""
        self._sent: float | None = None
        """When D got its leg."""
        self._connection: Connection | None = None
        """The connection of P's answer. It may serve other legs by now. If it is lost, P has possibly died."""
        self._timer: asyncio.TimerHandle | None = None
        self._search: asyncio.Task[None] | None = None
        """Looks for the reason why a D that shows no output does not answer."""
        self._check: asyncio.Task[None] | None = None
        """Asks whether P has died."""
        self.died = False
        """Whether P was lost after it had finished. If its push had not ended, D would wait for ever."""

    @property
    def loss(self) -> LostConnection:
        """The failure of a P that died."""
        return LostConnection(self._transfer.prefill.name, _LOST)

    @property
    def transfer_seconds(self) -> float:
        """For how long P has finished and D has had its leg; 0 until then."""
        if self._prefilled is None or self._sent is None:
            return 0.0
        return self._transfer.settlements.engines.clock() - max(self._prefilled, self._sent)

    def decode_sent(self) -> None:
        """D has its leg."""
        self._sent = self._transfer.settlements.engines.clock()

    def answered(self, connection: Connection) -> None:
        """P has answered over this connection."""
        self._connection = connection

    def prefilled(self) -> None:
        """P has finished, and keeps its KV for D."""
        self._prefilled = self._transfer.settlements.engines.clock()

    def start(self, *, shows_output: bool) -> None:
        """Start to watch. If no event shows D's first output, D's answer may take as long as the whole request."""
        if self._connection is not None:
            self._connection.on_lost.add(self._lose)
        loop, deadlines = asyncio.get_running_loop(), self._transfer.settlements.engines.deadlines
        if shows_output:
            seconds = deadlines.handoff_seconds
            self._timer = loop.call_later(seconds, self._miss_deadline, f"no first event within {seconds:g} s")
        else:
            self._timer = loop.call_later(deadlines.kv_due, self._begin_search)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        if self._search is not None:
            self._search.cancel()
        if self._check is not None:
            self._check.cancel()
        if self._connection is not None:
            self._connection.on_lost.discard(self._lose)

    def _miss_deadline(self, what: str) -> None:
        decode = self._decode_leg.endpoint.name
        self._decode_leg.interrupt(KVOverdue(DeadlineExceeded(decode, f"{what} of the end of the prefill")))

    def _begin_search(self) -> None:
        self._search = asyncio.get_running_loop().create_task(self._await_kv())

    async def _await_kv(self) -> None:
        """Return once no request at D waits for KV; interrupt D's wait if one waits and no KV will come.

        D's metrics do not show which request waits. So the control side has to find out whether KV moves. If it does
        again, KV that was sent before is lost: P's lease then ends.
        """
        transfer, clock = self._transfer, asyncio.get_running_loop().time
        engines, pair = transfer.settlements.engines, pairing(transfer.prefill, transfer.decode)
        end = clock() + engines.deadlines.handoff_seconds - engines.deadlines.kv_due
        expired = await transfer.expired()
        while True:
            waiting = read_waiting(await transfer.decode_metrics())
            if waiting is not None and not waiting.deferred and not waiting.capacity:
                return
            if pair in engines.snapshot.suspended:
                break
            engines.observer.slow_handoff(pair)
            if clock() >= end and 0.0 <= expired < await transfer.expired():
                break
            await asyncio.sleep(_POLL_SECONDS)
        self._miss_deadline("no KV")

    def _lose(self) -> None:
        prefilled, engines = self._prefilled, self._transfer.settlements.engines
        if prefilled is not None and engines.clock() - prefilled < engines.deadlines.handoff_seconds:
            self._check = asyncio.get_running_loop().create_task(self._check_prefill())

    async def _check_prefill(self) -> None:
        """Interrupt D's wait if P has died. A P that lives may close a connection that is idle."""
        transfer = self._transfer
        if await transfer.settlements.serving.death_checks.died(transfer.prefill):
            self.died = True
            self._decode_leg.interrupt(PrefillEnded(self.loss))
