"""Both legs of a push: sends them, and reports what is true of them."""

import asyncio
from functools import partial
from typing import Final

from pdx_api.names import Order
from pdx_api.vllm_metrics import read_waiting
from pdx_proxy.balancing.load import Room
from pdx_proxy.endpoints.endpoint import pairing
from pdx_proxy.engines.attribution import may_be_kv
from pdx_proxy.engines.transfer_params import LegRefused, NothingHandedOverError, needs_length
from pdx_proxy.handoff.failures import HandoffFailure, KVOverdue, PrefillEnded, judge, reached_engine
from pdx_proxy.handoff.push_prefill import PushPrefill
from pdx_proxy.handoff.request import Request
from pdx_proxy.handoff.settle import Ask, Free, Substitute
from pdx_proxy.handoff.settlements import LastStep, Legs, Settlements
from pdx_proxy.handoff.situation import (
    ANSWERED,
    Decode,
    Prefill,
    Situation,
    decode_after,
    decode_after_refusal,
    kind_of,
)
from pdx_proxy.handoff.transfer import Transfer
from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineFailure
from pdx_proxy.payload.body import decode_body
from pdx_proxy.telemetry.counters import Settlement

_NOT_SENT: Final = Decode.NOT_SENT
_OPEN: Final = Decode.OPEN
_PUSH_SECONDS: Final = 0.1
"""How long a D without a stream gets, after P's end, to receive the KV."""
_POLL_SECONDS: Final = 0.25
_ANSWER_SECONDS: Final = 0.01
"""How long a D without a stream gets to end its answer once it has the KV. A D that has ended it sends no notice."""
_RECEIVED_SECONDS: Final = 2.0
"""The same where D notifies P. There, a D without a stream notifies P when its leg is closed.

If P receives the notice before D has registered its blocks, P sends them no KV and no answer, and D keeps them.
"""
_NOTICE_SECONDS: Final = 1.0
"""How long D may take to notify P.

A P leg that arrived under the ID before the notice could replace KV that no D has received.
"""


class PushLegs(Legs):
    """Both legs of one attempt."""

    __slots__ = ("_decode", "_transfer", "decode_leg", "prefill", "request")

    def __init__(self, settlements: Settlements, room: Room, request: Request) -> None:
        self.request = request
        self.decode_leg = settlements.serving.decode_leg(room.take_decode(), request)
        slot = room.take_prefill()
        self._transfer = Transfer(settlements, slot.endpoint, self.decode_leg.endpoint, request)
        self.prefill = PushPrefill(self._transfer, slot, self.decode_leg)
        self._decode = _NOT_SENT

    async def begin(self) -> None:
        """Send both legs. Raises EngineFailure, PrefillEnded, or an error of the gateway itself.

        The gateway connects to both engines before it sends anything, so that the loss of one costs the other nothing.
        Where P goes first, it connects to D when P has finished, because D closes idle connections.
        """
        transfer, prefill, leg, order = self._transfer, self.prefill, self.decode_leg, self._order()
        identity = transfer.prefill.identity
        assert identity is not None, "a warm P of this family has an identity"
        if order is not Order.PREFILL_FIRST:
            await leg.connect()
        await prefill.connect()
        if order is Order.PREFILL_FIRST:
            await prefill.finish()
            await leg.connect()
            prefill.check()  # P may have been lost meanwhile
        body = decode_body(self.request.body, transfer.family.decode_params(transfer.id, identity))
        transfer.settlements.serving.send(leg, self.request, body, transfer.id, once=True)
        self._decode = _OPEN
        prefill.decode_sent()
        if prefill.task is not None or (order is Order.DECODE_FIRST and await self._decode_refuses()):
            return
        prefill.start()

    def _order(self) -> Order:
        """Return the order of the legs. A D that already waits for a P that stops would wait for minutes.

        So where P may stop at its first token, and its connector then hands over nothing, P goes first in every order.
        """
        transfer = self._transfer
        first = self.request.body.api.may_stop and needs_length(transfer.family)
        return Order.PREFILL_FIRST if first else transfer.prefill.order

    async def _decode_refuses(self) -> bool:
        try:
            answer = await self.decode_leg.head(self._transfer.settlements.engines.settings.decode_lead_seconds)
        except DeadlineExceeded:
            return False
        return answer.status >= 400

    def succeed(self) -> None:
        """D's answer is open, so P's KV has arrived."""
        transfer = self._transfer
        self.prefill.conclude()
        self.prefill.read_by_decode()
        transfer.settlements.serving.mark_handshake(transfer.prefill, transfer.decode)
        transfer.settlements.engines.observer.handed_over(transfer.prefill, transfer.decode)

    def abandon(self) -> None:
        """Nobody waits for the answer any more, mostly because the client has left: settle."""
        self.decode_leg.outlive_request()
        if not self.decode_leg.sent:
            self.prefill.conclude()
            self.decode_leg.end()
        self._transfer.settlements.settle(self)

    def refuse(self) -> None:
        """D has answered 4xx, or with an error event of the client: settle."""
        self._close(decode_after_refusal(self.decode_leg.answer))
        self._transfer.settlements.settle(self)

    def fail(self, failure: EngineFailure) -> HandoffFailure:
        """D has failed, or P before it got its leg: settle. Return the exception for the caller."""
        transfer, observer, sent = self._transfer, self._transfer.settlements.engines.observer, self.decode_leg.sent
        if failure.endpoint == transfer.prefill.name:
            self._close(Decode.NOT_SENT)
            transfer.settlements.settle(self)
            observer.suspect(transfer.prefill, failure)
            return HandoffFailure(transfer.prefill, failure, begun=sent)
        self._close(decode_after(failure))
        transfer.settlements.settle(self)
        blame = judge(failure, partial(observer.handoff_answered_error, transfer.prefill, transfer.decode, failure))
        begun = sent or self.prefill.task is not None
        pair = pairing(transfer.prefill, transfer.decode) if sent and may_be_kv(failure) else None
        return HandoffFailure(transfer.decode, failure, begun=begun, pair=pair, blame=blame)

    def _close(self, decode: Decode) -> None:
        """D's leg has ended like this. A D that had time to receive the KV, and did not refuse the leg, has it."""
        self.prefill.conclude()
        self.decode_leg.end()
        answered = decode in ANSWERED or decode is Decode.REFUSED_BY_SERVER
        self._decode = Decode.HAS_KV if self.prefill.transfer_seconds > _PUSH_SECONDS and not answered else decode

    def fail_late(self, overdue: KVOverdue) -> HandoffFailure:
        """D shows no first event although P has finished: it still queues the request, or the push failed."""
        transfer, observer, failure = self._transfer, self._transfer.settlements.engines.observer, overdue.failure
        self.prefill.conclude()
        self.decode_leg.outlive_request()
        self._decode = Decode.LATE
        transfer.settlements.settle(self)
        observer.check(transfer.prefill)
        observer.decode_failed(transfer.prefill, transfer.decode, failure)
        return HandoffFailure(transfer.decode, failure, whole=True, pair=pairing(transfer.prefill, transfer.decode))

    def fail_prefill(self, ended: PrefillEnded) -> HandoffFailure | LegRefused:
        """P has failed: settle. Its leg may be under way again, only to release D's blocks."""
        failure, prefill, observer = ended.failure, self._transfer.prefill, self._transfer.settlements.engines.observer
        self.prefill.conclude()
        begun = self.decode_leg.sent or self.prefill.leg.sent
        if self.decode_leg.sent:
            self.decode_leg.outlive_request()
            self._transfer.settlements.settle(self)
        else:
            self.end(None)
        if isinstance(failure, BadAnswer) and 400 <= failure.status < 500:
            return LegRefused()
        if isinstance(failure, NothingHandedOverError):
            observer.handoff_failed(prefill, failure)
            return HandoffFailure(prefill, failure, begun=begun)
        blame = partial(observer.prefill_failed, prefill, failure)
        return HandoffFailure(prefill, failure, begun=begun, blame=judge(failure, blame))

    def situation(self) -> Situation:
        prefill, decode = self.prefill.state, self._decode
        unanswered = decode is Decode.OPEN and prefill not in (Prefill.RUNNING, Prefill.FINISHED, Prefill.DIED)
        answer = self.decode_leg.answer if unanswered else None
        if answer is not None and (answer.status >= 400 or answer.refused):
            decode = decode_after_refusal(answer)
        return Situation(kind_of(self._transfer.family), self.request.stream, prefill, decode)

    async def perform(self, step: Ask) -> None:
        if step is Ask.WATCH_DECODE:
            self._decode = await self._watch_decode()
        elif step is Ask.CLOSE_DECODE:
            try:
                queued = await self._only_queues()
            finally:
                self.decode_leg.end()
            self._decode = Decode.CLOSED_QUEUED if queued else Decode.CLOSED_WAITING
        elif step is Ask.START_PREFILL:
            self.prefill.start()
        else:
            await self.prefill.end(stop=step is Ask.STOP_PREFILL)

    async def _watch_decode(self) -> Decode:
        """Wait until D has the KV of a P that has finished, or has ended without it."""
        transfer, leg = self._transfer, self.decode_leg
        engines, seconds = transfer.settlements.engines, self._seconds_to_receive()
        end = engines.clock() + seconds + engines.deadlines.settle
        page, received = b"", self.request.stream or not transfer.notifies
        while True:
            try:
                answer = await leg.first_event(seconds)
            except (DeadlineExceeded, KVOverdue):
                if received:
                    return Decode.SILENT if page else Decode.UNREPORTED
            except (EngineFailure, PrefillEnded):
                return Decode.WITHOUT_KV
            else:
                has_kv = (answer.status == 200 and not answer.refused) or (
                    transfer.notifies and reached_engine(answer.body)
                )
                return Decode.HAS_KV if has_kv else Decode.WITHOUT_KV
            page = await transfer.decode_metrics()
            waiting = read_waiting(page)
            received = waiting is None or not waiting.deferred or engines.clock() >= end
            seconds = _ANSWER_SECONDS if received else _POLL_SECONDS

    def _seconds_to_receive(self) -> float:
        """How long D may take, after P's end, to show its first event, or else to receive the KV."""
        if self.request.stream:
            return self._transfer.settlements.engines.deadlines.settle
        return _RECEIVED_SECONDS if self._transfer.notifies else _PUSH_SECONDS

    async def _only_queues(self) -> bool:
        """Whether no request at D waits for KV, so that D has allocated nothing for this push yet.

        Called while D still has its leg. D registers its blocks with P once it has scheduled the request, which then
        waits for KV (`deferred`). The metrics do not show which request waits: a queue (`capacity`) beside one that
        waits for KV leaves it open. It counts as queued then, because a loss counts against D until D restarts.
        """
        waiting = read_waiting(await self._transfer.decode_metrics())
        return waiting is not None and (waiting.capacity > 0 or waiting.deferred == 0)

    async def conclude(self, step: LastStep) -> Settlement:
        transfer = self._transfer
        if isinstance(step, Substitute):
            if step.after_notice:
                self.decode_leg.end()
                await asyncio.sleep(_NOTICE_SECONDS)
            return Settlement.FINISHED if await transfer.substitute(short=step.short) else step.otherwise
        assert isinstance(step, Free), "only a pull closes D when its answer is open"
        assert self.prefill.task is not None, "a P that keeps blocks has finished"
        params = self.prefill.task.result()
        assert params is not None, "a P that keeps blocks has finished"
        freed = await transfer.free(params, refused=step is Free.BY_REFUSED_LEG)
        return Settlement.RELEASED if freed else Settlement.LEASE

    def end(self, result: Settlement | None) -> None:
        lost = result is Settlement.DECODE_LOST
        self.prefill.conclude()
        self.prefill.leg.end()
        self.decode_leg.end()
        self.prefill.unpin(expires=result is Settlement.LEASE or (lost and self.prefill.state is Prefill.FINISHED))
        if lost:
            self._transfer.settlements.engines.observer.lost_handoff(self._transfer.decode)
