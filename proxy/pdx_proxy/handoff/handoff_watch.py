"""Watches a push between P's end and D's first event: neither engine reports a transfer that has failed."""

import asyncio
from typing import Final

from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.failures import KVOverdue, PrefillEnded
from pdx_proxy.handoff.transfer import Transfer
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import DeadlineExceeded, LostConnection

_LOST: Final = "lost before its KV was known to have arrived"


class HandoffWatch:
    """Interrupts D's wait if P is lost, or if a streaming D shows no first event in time.

    P's lease ends soon after the deadline. A D that has queued the request until then would wait for ever.
    """

    __slots__ = ("_connection", "_decode_leg", "_prefilled", "_sent", "_timer", "_transfer", "died")

    def __init__(self, transfer: Transfer, decode_leg: Leg) -> None:
        self._transfer = transfer
        self._decode_leg = decode_leg
        self._prefilled: float | None = None
        """When P finished."""
        self._sent: float | None = None
        """When D got its leg."""
        self._connection: Connection | None = None
        """The connection of P's answer. It may serve other legs by now, but its loss means that P is lost."""
        self._timer: asyncio.TimerHandle | None = None
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

    def start(self, *, stream: bool) -> None:
        """Start to watch. Without a stream, D's answer may take as long as the whole request."""
        if self._connection is not None:
            self._connection.on_lost.add(self._lose)
        if stream:
            seconds = self._transfer.settlements.engines.deadlines.handoff
            self._timer = asyncio.get_running_loop().call_later(seconds, self._miss_deadline, seconds)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.on_lost.discard(self._lose)

    def _miss_deadline(self, seconds: float) -> None:
        decode = self._decode_leg.endpoint.name
        failure = DeadlineExceeded(decode, f"no first event within {seconds:g} s of the end of the prefill")
        self._decode_leg.interrupt(KVOverdue(failure))

    def _lose(self) -> None:
        prefilled, engines = self._prefilled, self._transfer.settlements.engines
        if prefilled is not None and engines.clock() - prefilled < engines.deadlines.handoff:
            self.died = True
            self._decode_leg.interrupt(PrefillEnded(self.loss))
