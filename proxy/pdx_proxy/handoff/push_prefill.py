"""The prefill leg of a push: sent, sent again if it is lost while D waits, watched until D has the KV.

The leg runs as a task of its own. When it fails, it interrupts D's wait.
"""

import asyncio
from enum import IntEnum
from math import inf
from typing import Final

from pdx_api.connectors.families import AtBootstrap, Identity, KVParams
from pdx_api.names import PrefillFailure
from pdx_proxy.balancing.load import Slot
from pdx_proxy.engines.bootstrap import query_identity
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import LegRefused, PrefillStopped, handed_over, identity_of
from pdx_proxy.handoff.push_transfer import PushTransfer
from pdx_proxy.handoff.result import FULL, has_answered
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ConnectFailure,
    DeadlineExceeded,
    EngineFailure,
    LostConnection,
    Reason,
    RequestExpired,
)
from pdx_proxy.payload.body import prefill_body
from pdx_proxy.telemetry.counters import Phase
from pdx_proxy.telemetry.timeline import LegRecord

_REFUSAL_SECONDS: Final = 0.5
"""How long D may take to refuse a request that P has refused."""
_PREFILL_TRIES: Final = 2
_RESTARTED: Final = "has restarted since it was warmed"


class _KV(IntEnum):
    """The KV of P, as `pdx_prefill_kv_pinned` counts it."""

    NONE = 0
    PINNED = 1
    """P has finished, and D has not read the KV."""
    DONE = 2
    """D has the KV, or P's blocks are free."""


_NONE: Final = _KV.NONE
_PINNED: Final = _KV.PINNED
_DONE: Final = _KV.DONE


class PushPrefill:
    """P's side of one push."""

    def __init__(self, transfer: PushTransfer, slot: Slot, decode_leg: Leg) -> None:
        self._transfer = transfer
        self._engines = transfer.engines
        self._serving = transfer.settlements.serving
        self._request = transfer.request
        self._endpoint = transfer.prefill
        self._decode_leg = decode_leg
        self.leg = self._serving.prefill_leg(slot, transfer.request)
        self.task: asyncio.Task[KVParams | None] | None = None
        """Returns P's parameters, or None after a failure. None until P's leg may be sent."""
        self.failure: Exception | None = None
        """A failure of P, or an error of the gateway itself."""
        self.push_failure: DeadlineExceeded | None = None
        """The failure of a D that shows no first event although P has finished. It may still queue the request."""
        self.seconds = 0.0
        self.transfer_since: float | None = None
        """Since when P has finished and D has its leg, so that KV may move."""
        self.concluded = False
        """Whether D no longer needs P. P's leg is then not sent again."""
        self.resending = False
        """Whether P's leg is sent again only to release D's blocks. The client has already got its error."""
        self._ended: float | None = None
        self._record: LegRecord | None = None
        """The leg that was sent last."""
        self._kv = _NONE
        self._watch: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        """The connection of P's answer. It may serve other legs by now, but its loss means that P is lost."""

    async def connect(self) -> None:
        """Connect to P; raises EngineFailure, also for a P that has restarted since its warm-up.

        Where P's answers hold no identity, P is queried for it, except over a connection that was used before: its
        other end is still the same process.
        """
        await self.leg.connect()
        source = self._transfer.family.identity
        if not isinstance(source, AtBootstrap) or self.leg.connection.used:
            return
        if await query_identity(self._engines, self._endpoint, source) != self._endpoint.identity:
            raise LostConnection(self._endpoint.name, _RESTARTED)

    def start(self) -> "asyncio.Task[KVParams | None]":
        """Send P's leg, in a task that runs to its end."""
        self.task = self._transfer.settlements.start(self._run(), self._transfer.call.permit)
        return self.task

    async def finish(self) -> None:
        """Send P's leg and wait until it has ended; raises its failure, or RequestExpired."""
        task, deadline = self.start(), self._request.deadline
        try:
            async with asyncio.timeout_at(None if deadline == inf else deadline):
                await asyncio.shield(task)
        except TimeoutError:
            raise RequestExpired from None
        self.check()

    def check(self) -> None:
        """Raise the failure of P, if any."""
        if self.failure is not None:
            raise self.failure

    def decode_sent(self) -> None:
        """Note that D has its leg."""
        if self._ended is not None:
            self.transfer_since = self._engines.clock()

    def conclude(self) -> None:
        """D no longer needs P: stop watching P."""
        self.concluded = True
        if self._watch is not None:
            self._watch.cancel()
        if self._connection is not None:
            self._connection.on_lost.discard(self._lose)

    def unpin(self, *, expires: bool = False) -> None:
        """P's KV is free at once, or (`expires`) when its lease ends."""
        if self._kv is _PINNED:
            self._kv = _DONE
            self._transfer.settlements.unpin(self._endpoint, expires=expires)

    def read_by_decode(self) -> None:
        """D has the KV, perhaps before P's answer has arrived."""
        self.unpin()
        self._kv = _DONE

    async def _run(self) -> KVParams | None:
        """P's leg to its end. An error of the gateway itself interrupts D's wait like a failure of P."""
        try:
            return await self._send_until_done()
        except Exception as error:
            self.failure = error
            if not self.concluded:
                self._decode_leg.interrupt(error)
            return None

    async def _send_until_done(self) -> KVParams | None:
        """Send P's leg, and once more under the same ID if it is lost while D waits.

        Unless a retry is allowed, the client gets its error at once. The second leg then only releases D's blocks.
        """
        began = self._engines.clock()
        waits = self._engines.settings.retries.on_prefill_failure is PrefillFailure.RETRY
        for left in reversed(range(_PREFILL_TRIES)):
            try:
                params, identity = await self._send()
            except EngineFailure as failure:
                again = left > 0 and self._may_resend(failure) and await self._can_resend()
                if not (again and waits):
                    self.resending = again
                    await self._fail_decode(failure)
                if again:
                    continue
                return None
            if identity != self._endpoint.identity:
                self._transfer.settlements.settle(self._transfer.free(params), self._transfer.call)
                await self._fail_decode(LostConnection(self._endpoint.name, _RESTARTED))
                return None
            self._succeed(began)
            return params
        return None

    async def _send(self) -> tuple[KVParams, Identity | None]:
        """Send P's leg once; return P's parameters and the identity that they name."""
        prefill, transfer, leg = self._endpoint, self._transfer, self.leg
        if leg.sent:
            leg = self.leg = self._serving.prefill_leg(Slot(self._engines.load, prefill), self._request)
        try:
            if not leg.connected:
                await leg.connect()
            body = prefill_body(self._request.body, transfer.family.prefill_params(transfer.id))
            self._record = self._serving.send_prefill(leg, transfer.call, body, transfer.id)
            answer = await leg.whole(self._engines.deadlines.prefill)
            params = handed_over(prefill, transfer.family, answer, self._request.body.api)
            self._connection = leg.connection
        except PrefillStopped:
            raise
        except LegRefused:
            answer = leg.answer
            raise BadAnswer(prefill.name, "refused", Reason.STATUS, answer.status, answer.body) from None
        finally:
            leg.end()
        return params, identity_of(prefill, transfer.family, params)

    def _may_resend(self, failure: EngineFailure) -> bool:
        """Whether the same leg may succeed at the same P, for a D that waits."""
        if self.concluded or not self._decode_leg.sent or isinstance(failure, ConnectFailure):
            return False
        if self._transfer.by_prefill_leg:
            return has_answered(failure, (FULL,))
        return not (isinstance(failure, BadAnswer) and failure.status < 500)

    async def _can_resend(self) -> bool:
        """Whether P accepts a connection, D still waits and the retry budget allows it.

        A P that is gone takes nothing from the budget, because all of its requests fail at once.
        """
        leg = self.leg = self._serving.prefill_leg(Slot(self._engines.load, self._endpoint), self._request)
        try:
            await leg.connect()
        except EngineFailure:
            leg.end()
            return False
        if self.concluded or not self._serving.may_retry():
            leg.end()
            return False
        return True

    async def _fail_decode(self, failure: EngineFailure) -> None:
        """Interrupt D's wait. If P refused the request, D gets some time to refuse it first."""
        if self._decode_leg.sent and isinstance(failure, BadAnswer) and failure.status < 500:
            await asyncio.sleep(_REFUSAL_SECONDS)
        self.failure = failure
        if not self.concluded:
            self._decode_leg.interrupt(failure)

    def _succeed(self, began: float) -> None:
        """P has finished. Pin its KV, unless D's first event was faster than P's answer."""
        self._ended = self._engines.clock()
        if self._record is not None:
            self._record.ended = self._ended
        if self._decode_leg.sent:
            self.transfer_since = self._ended
        self.seconds = self._ended - began
        self._transfer.call.timeline.prefill = self.seconds
        self._serving.counters.phases[Phase.PREFILL].observe(self.seconds)
        if self._kv is _NONE:
            self._kv = _PINNED
            self._serving.counters.pin(self._endpoint.name)
        if not self.concluded:
            self._watch_decode()

    def _watch_decode(self) -> None:
        """Fail the hand-off if P is lost or a streaming D shows no first event: D does not report a failed push.

        P's lease ends soon after the deadline. A D that has queued the request until then would wait for ever.
        """
        if self._connection is not None:
            self._connection.on_lost.add(self._lose)
        if not self._request.stream:
            return
        seconds = self._engines.deadlines.handoff
        self._watch = asyncio.get_running_loop().call_later(seconds, self._miss_deadline, seconds)

    def _miss_deadline(self, seconds: float) -> None:
        decode = self._decode_leg.endpoint.name
        self.push_failure = DeadlineExceeded(decode, f"no first event within {seconds:g} s of the end of the prefill")
        self._decode_leg.interrupt(self.push_failure)

    def _lose(self) -> None:
        """P was lost after its answer. If its push had not finished, D would wait for ever."""
        ended = self._ended
        if not self.concluded and ended is not None and self._engines.clock() - ended < self._engines.deadlines.handoff:
            self._give_up(LostConnection(self._endpoint.name, "lost before its KV was known to have arrived"))

    def _give_up(self, failure: EngineFailure) -> None:
        self.failure = failure
        self._decode_leg.interrupt(failure)
