"""The push family: both legs carry one fresh transfer ID, and P writes KV into blocks that D has allocated.

Invariant: once D has its leg, a P leg runs to its end under the same ID, or D's blocks are counted as lost. That leg is
the first one or, where the family settles by P's leg and P has not begun, a substitute. If P is aborted, D waits
without any timeout of vLLM, or with one of minutes.
"""

import asyncio
from math import inf

from pdx_api.connectors.families import Push
from pdx_api.names import Order
from pdx_proxy.balancing.load import Room, Slot
from pdx_proxy.engines.transfer_params import LegRefused, NothingHandedOverError, needs_length
from pdx_proxy.handoff import push_settlement
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.push_prefill import PushPrefill
from pdx_proxy.handoff.push_settlement import DecodeEnd, end_of_failure, end_of_refusal
from pdx_proxy.handoff.push_transfer import PushTransfer
from pdx_proxy.handoff.result import Handoff, HandoffFailure, has_answered
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineFailure
from pdx_proxy.payload.body import decode_body


async def hand_off(
    serving: WorkerState,
    settlements: Settlements,
    family: Push,
    order: Order,
    room: Room,
    call: Call,
) -> Handoff:
    """Run both legs until D's answer is open; raises HandoffFailure or LegRefused.

    A D that already waits for a P that stops at its first token would wait for minutes. So where P may stop, and its
    connector then hands over nothing, P goes first in every order.
    """
    if call.request.body.api.may_stop and needs_length(family):
        order = Order.PREFILL_FIRST
    prefill_slot, decode_slot = room.take_prefill(), room.take_decode()
    pair = (prefill_slot.endpoint, decode_slot.endpoint)
    attempt = _Attempt(serving, PushTransfer(settlements, family, pair, call), prefill_slot, decode_slot)
    began = serving.engines.clock()
    try:
        await attempt.begin(order)
        seconds = serving.engines.deadlines.answer(stream=call.request.stream)
        answer = await attempt.decode_leg.first_event(seconds)
    except EngineFailure as failure:
        raise attempt.fail(failure) from failure
    except (asyncio.CancelledError, Exception):  # mostly because the client has left
        attempt.abandon()
        raise
    if answer.status != 200:
        attempt.unwind(end_of_refusal(answer.body))
        raise LegRefused
    attempt.succeed()
    serving.mark_handshake(*pair)
    serving.engines.observer.handed_over(pair[0])
    return Handoff(attempt.decode_leg, pair[0], attempt.prefill.seconds, serving.engines.clock() - began)


class _Attempt:
    """Both legs of one attempt."""

    __slots__ = ("_engines", "_serving", "_transfer", "decode_leg", "prefill")

    def __init__(self, serving: WorkerState, transfer: PushTransfer, prefill_slot: Slot, decode_slot: Slot) -> None:
        self._serving = serving
        self._engines = serving.engines
        self._transfer = transfer
        self.decode_leg = serving.engines.leg_in(decode_slot, transfer.request.deadline)
        self.decode_leg.once = True
        self.prefill = PushPrefill(transfer, prefill_slot, self.decode_leg)

    async def begin(self, order: Order) -> None:
        """Connect to both engines before anything is sent, so that the loss of one costs the other nothing.

        Where P goes first, the gateway connects to D when P has finished, because D closes idle connections.
        """
        transfer, prefill, leg = self._transfer, self.prefill, self.decode_leg
        identity = transfer.prefill.identity
        assert identity is not None, "a warm P of this family has an identity"
        if order is not Order.PREFILL_FIRST:
            await leg.connect()
        await prefill.connect()
        if order is Order.PREFILL_FIRST:
            await prefill.finish()
            await leg.connect()
            prefill.check()  # P may have been lost meanwhile
        params = transfer.family.decode_params(transfer.id, identity)
        self._serving.send(leg, transfer.call, decode_body(transfer.request.body, params), transfer.id)
        prefill.decode_sent()
        if prefill.task is not None or (order is Order.DECODE_FIRST and await self._decode_refuses()):
            return
        prefill.start()

    async def _decode_refuses(self) -> bool:
        try:
            answer = await self.decode_leg.head(self._engines.settings.decode_lead_seconds)
        except DeadlineExceeded:
            return False
        return answer.status >= 400

    def succeed(self) -> None:
        """D's answer is open, so P's KV has arrived."""
        self.prefill.conclude()
        self.prefill.read_by_decode()

    def abandon(self) -> None:
        """The answer is no longer needed: let P finish, then close D."""
        leg = self.decode_leg
        leg.deadline = inf
        leg.clear_interruption()
        if leg.sent:
            push_settlement.finish(self._transfer, self.prefill, leg)
        else:
            self.unwind(DecodeEnd.ABSENT)

    def unwind(self, end: DecodeEnd) -> None:
        """End D's leg and settle."""
        self.decode_leg.end()
        push_settlement.unwind(self._transfer, self.prefill, self.decode_leg, end)

    def fail(self, failure: EngineFailure) -> Exception:
        """End the attempt; return the exception for the caller."""
        prefill, decode, observer = self._transfer.prefill, self._transfer.decode, self._engines.observer
        self.prefill.conclude()
        if failure is self.prefill.failure:
            return self._fail_prefill(failure)
        late = failure is self.prefill.push_failure
        if late:
            push_settlement.give_up(self._transfer, self.prefill, self.decode_leg)
            observer.check(prefill)
        else:
            self.unwind(end_of_failure(failure))
        sent = self.decode_leg.sent
        if failure.endpoint == prefill.name:
            observer.suspect(prefill, failure)
            return HandoffFailure(prefill, failure, begun=sent)
        observer.decode_failed(prefill, decode, failure)
        return HandoffFailure(decode, failure, begun=sent or self.prefill.task is not None, whole=late)

    def _fail_prefill(self, failure: EngineFailure) -> Exception:
        push_settlement.after_prefill_failure(self._transfer, self.prefill, self.decode_leg, failure)
        if isinstance(failure, BadAnswer) and 400 <= failure.status < 500:
            return LegRefused()
        prefill = self._transfer.prefill
        if isinstance(failure, NothingHandedOverError):
            self._engines.observer.handoff_failed(prefill, failure)
        elif not has_answered(failure, range(500, 600)):  # the observer counts them
            self._engines.observer.suspect(prefill, failure)
        return HandoffFailure(prefill, failure, begun=self.decode_leg.sent or self.prefill.leg.sent)
