"""The rendezvous family: both legs are sent under one fresh id, and P pushes into blocks that D has allocated.

Invariant: once D has been sent its leg, a P leg runs to its end under the same id (the whole one or, where the family
settles by meeting and P has not begun, another in its place), or D's blocks are counted as lost. An aborted P
leaves D waiting without any time-out of vLLM's, or with one of minutes.
"""

import asyncio
from math import inf
from typing import Final

from pdx_api.connectors.families import AtBootstrap, Identity, KVParams, Push, Settles
from pdx_api.names import Order, PrefillFailure
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.bootstrap import ask_identity
from pdx_proxy.engines.transfer_params import LegRefused, handed_over, identity_of
from pdx_proxy.handoff.base import FULL, HTTP_BAD_REQUEST, Handoff, HandoffFailure, blame, has_answered
from pdx_proxy.handoff.push_settlement import PUSH_SECONDS, PushSettlement
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.handoff.settlement import Settlements
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
from pdx_proxy.payload.request import Request, decode_body, prefill_body
from pdx_proxy.telemetry.counters import Phase, Settlement

_REFUSAL_SECONDS: Final = 0.5
"""How long D may take to refuse what P has refused."""
_PREFILL_TRIES: Final = 2


async def hand_off(
    serving: ServingState,
    settlements: Settlements,
    family: Push,
    order: Order,
    pair: tuple[Endpoint, Endpoint],
    request: Request,
) -> Handoff:
    """Run both legs until D's answer is open; raises HandoffFailure or LegRefused."""
    meeting = _Meeting(serving, settlements, family, pair, request)
    began = serving.engines.clock()
    try:
        await meeting.begin(order)
        answer = await meeting.decode_leg.opened(serving.engines.deadlines.first_event)
    except EngineFailure as failure:
        raise meeting.fail(failure) from failure
    except (asyncio.CancelledError, Exception):  # mostly because nobody waits any more
        meeting.leave()
        raise
    if answer.status != 200:
        heard = HTTP_BAD_REQUEST not in answer.body
        meeting.decode_leg.end()
        meeting.unwind(stop_prefill=True, heard=heard, refused=True)
        raise LegRefused
    meeting.succeed()
    serving.mark_handshake(*pair)
    return Handoff(meeting.decode_leg, pair[0], meeting.prefill_seconds, serving.engines.clock() - began)


class _Meeting:
    """Both legs of one attempt and what is known of them."""

    def __init__(
        self,
        serving: ServingState,
        settlements: Settlements,
        family: Push,
        pair: tuple[Endpoint, Endpoint],
        request: Request,
    ) -> None:
        self._serving = serving
        self._engines = serving.engines
        self._settlements = settlements
        self._family = family
        self._pair = pair
        self._prefill, self._decode = pair
        self._request = request
        self._id = self._engines.new_id()
        self._meets = family.settles is Settles.BY_PREFILL_LEG
        self._identity = self._prefill.identity
        self._prefill_leg = self._engines.leg(self._prefill)
        self._prefill_task: asyncio.Task[KVParams | None] | None = None
        self._prefill_failure: Exception | None = None
        """An engine's failure, or an error of the gateway's own."""
        self.decode_leg = self._engines.leg(self._decode, request.until)
        self._prefill_ended: float | None = None
        self.prefill_seconds = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._prefill_connection: Connection | None = None
        """What P has answered on. It may serve others by now, but its end is P's."""
        self.over = False
        """Whether D needs P no more: P's leg is then not sent again."""
        self._holds = False
        """Whether P's KV is counted as held."""
        self._taken = False
        """Whether D has it."""
        self._both_since: float | None = None
        """Since when P has finished and D been told."""
        self._goes_on = False
        """Whether P's leg is sent again though its failure has ended the attempt: it frees D's blocks."""

    @property
    def _parting(self) -> PushSettlement:
        """What frees blocks if this ends early."""
        return PushSettlement(self._serving, self._settlements, self._family, self._pair, self._request, self._id)

    def conclude(self) -> None:
        """D needs P no more."""
        self.over = True
        if self._watch is not None:
            self._watch.cancel()
        if self._prefill_connection is not None:
            self._prefill_connection.on_lost.discard(self._lose_prefill)

    def succeed(self) -> None:
        """D's answer is open, so P's KV has arrived."""
        self.conclude()
        self._taken = True
        self._let_go()

    def _hold(self) -> None:
        """P has finished: its KV waits for D, unless D's first event was faster than P's answer."""
        if not self._taken:
            self._holds = True
            self._serving.counters.hold(self._prefill.name)

    def _let_go(self, *, expires: bool = False) -> None:
        if self._holds:
            self._holds = False
            self._settlements.let_go(self._prefill, expires=expires)

    async def begin(self, order: Order) -> None:
        """Connect to both before anything is sent, so that an engine that is gone costs the other nothing.

        Where P goes first, D is connected to when P has finished, because D closes what is idle.
        """
        assert self._identity is not None, "a warm P of this family has told its identity"
        if order is not Order.PREFILL_FIRST:
            await self.decode_leg.connect()
        await self._prefill_leg.connect()
        if isinstance(self._family.identity, AtBootstrap) and not self._prefill_leg.connection.used:
            await self._recognise(self._family.identity)
        if order is Order.PREFILL_FIRST:
            await self._finish_prefill()
            await self.decode_leg.connect()
            if self._prefill_failure is not None:  # P has died meanwhile
                raise self._prefill_failure
        params = self._family.decode_params(self._id, self._identity)
        self._serving.send(self.decode_leg, self._request, decode_body(self._request.body, params), self._id)
        if self._prefill_ended is not None:
            self._both_since = self._engines.clock()
        if self._prefill_task is not None or (order is Order.DECODE_FIRST and await self._decode_refuses()):
            return
        self._prefill_task = self._settlements.start(self._run_prefill())

    async def _recognise(self, asked: AtBootstrap) -> None:
        """P's answers do not say who P is, but a connection that was used before ends in the same start of it."""
        if await ask_identity(self._engines, self._prefill, asked) != self._identity:
            raise LostConnection(self._prefill.name, "has restarted since it was warmed")

    async def _finish_prefill(self) -> None:
        self._prefill_task = self._settlements.start(self._run_prefill())
        until = self._request.until
        try:
            async with asyncio.timeout_at(None if until == inf else until):
                await asyncio.shield(self._prefill_task)
        except TimeoutError:
            raise RequestExpired from None
        if self._prefill_failure is not None:
            raise self._prefill_failure

    def leave(self) -> None:
        """Nobody waits any more: let P finish, then close D."""
        self.decode_leg.until = inf
        self.decode_leg.resume()
        if self.decode_leg.begun:
            self._settlements.settle(self._finish())
        else:
            self.decode_leg.end()
            self.unwind(stop_prefill=True)

    def fail(self, failure: EngineFailure) -> Exception:
        """End the attempt; the exception for whoever asked for it."""
        self.conclude()
        if failure is self._prefill_failure:
            if self._goes_on:
                self.decode_leg.resume()
                self._settlements.settle(self._finish())
            else:
                told = self.decode_leg.begun
                self.decode_leg.end()
                self._let_go(expires=isinstance(failure, DeadlineExceeded))
                if told:
                    self._settlements.settle(self._parting.unmet(failure))
            if isinstance(failure, BadAnswer) and 400 <= failure.status < 500:
                return LegRefused()
            if not has_answered(failure, (FULL,)):
                self._engines.suspect(self._prefill, failure)
            return HandoffFailure(self._prefill, failure, begun=self.decode_leg.begun or self._prefill_leg.begun)
        heard = has_answered(failure, (FULL,))
        self.decode_leg.end()
        self.unwind(
            stop_prefill=isinstance(failure, BadAnswer | ConnectFailure),
            decode_waits=isinstance(failure, DeadlineExceeded),
            heard=heard,
            refused=heard,
        )
        if failure.endpoint == self._prefill.name:
            self._engines.suspect(self._prefill, failure)
            return HandoffFailure(self._prefill, failure, begun=self.decode_leg.begun)
        blame(self._serving, self._prefill, self._decode, failure)
        if isinstance(failure, DeadlineExceeded):
            self._engines.suspect(self._prefill, f"its hand-off failed at {failure}")
        return HandoffFailure(self._decode, failure, begun=self.decode_leg.begun or self._prefill_task is not None)

    def unwind(
        self, *, stop_prefill: bool, decode_waits: bool = False, heard: bool = False, refused: bool = False
    ) -> None:
        """D takes no KV. P may be stopped only when D is sure not to wait for it any more.

        `refused` says that D has refused its leg; `heard`, that its engine has heard of it, and so P where D tells it.
        """
        self.conclude()
        if self._prefill_task is None:
            self._prefill_leg.end()
            if self._meets and heard:
                self._settlements.settle(self._parting.unmet(None, refused=True))
            return
        since = self._both_since
        if not refused and since is not None and self._engines.clock() - since > PUSH_SECONDS:
            self._let_go()
            self._settlements.count(Settlement.FINISHED)  # D had the KV: there is nothing left to free
            return
        stop_prefill = stop_prefill and not (self._meets and self.decode_leg.begun)
        self._settlements.settle(self._unwind(self._prefill_task, stop_prefill, decode_waits, heard))

    async def _decode_refuses(self) -> bool:
        try:
            answer = await self.decode_leg.head(self._engines.settings.decode_lead_seconds)
        except DeadlineExceeded:
            return False
        return answer.status >= 400

    async def _run_prefill(self) -> KVParams | None:
        """P's whole leg; an error of the gateway's own ends it like a failure of P, and D's wait raises it."""
        try:
            return await self._prefill_whole()
        except Exception as error:
            self._prefill_failure = error
            if not self.over:
                self.decode_leg.interrupt(error)
            return None

    async def _prefill_whole(self) -> KVParams | None:
        """P's whole leg, sent once more under the same id if it is lost while D waits.

        Unless it is to be tried again, the client is answered at once; the second leg is then for D's blocks alone.
        """
        began = self._engines.clock()
        waits = self._engines.settings.retries.on_prefill_failure is PrefillFailure.RETRY
        for left in reversed(range(_PREFILL_TRIES)):
            try:
                params, identity = await self._prefill_once()
            except EngineFailure as failure:
                again = left > 0 and self._may_resume(failure) and await self._may_ask_again()
                if not (again and waits):
                    self._goes_on = again
                    await self._tell_decode(failure)
                if again:
                    continue
                return None
            if identity != self._prefill.identity:
                self._settlements.settle(self._parting.free(params))
                await self._tell_decode(LostConnection(self._prefill.name, "has restarted since it was warmed"))
                return None
            self._prefill_ended = self._engines.clock()
            if self.decode_leg.begun:
                self._both_since = self._prefill_ended
            self.prefill_seconds = self._prefill_ended - began
            self._request.timeline.prefill = self.prefill_seconds
            self._serving.counters.phases[Phase.PREFILL].observe(self.prefill_seconds)
            self._hold()
            self._watch_decode()
            return params
        return None

    def _watch_decode(self) -> None:
        """P has finished: a D that streams shows its first event soon, or P's push has failed, which D never says."""
        if self.over:
            return
        if self._prefill_connection is not None:
            self._prefill_connection.on_lost.add(self._lose_prefill)
        if not self._request.stream:
            return
        seconds = self._engines.deadlines.handoff
        failure = DeadlineExceeded(self._prefill.name, f"its KV has not reached decode within {seconds:g} s")
        self._watch = asyncio.get_running_loop().call_later(seconds, self._give_up, failure)

    def _lose_prefill(self) -> None:
        """P has died behind its answer. Its push may have gone through; but if not, D would wait for ever."""
        ended = self._prefill_ended
        if not self.over and ended is not None and self._engines.clock() - ended < self._engines.deadlines.handoff:
            self._give_up(LostConnection(self._prefill.name, "lost before its KV was known to have arrived"))

    def _give_up(self, failure: EngineFailure) -> None:
        self._prefill_failure = failure
        self.decode_leg.interrupt(failure)

    def _may_resume(self, failure: EngineFailure) -> bool:
        """Whether the same leg may succeed at the same P, for a D that waits."""
        if self.over or not self.decode_leg.begun or isinstance(failure, ConnectFailure):
            return False
        if self._meets:
            return has_answered(failure, (FULL,))
        return not (isinstance(failure, BadAnswer) and failure.status < 500)

    async def _may_ask_again(self) -> bool:
        """Whether P is there, D waits and the budget allows. A P that is gone costs none: it fails many at once."""
        leg = self._prefill_leg = self._engines.leg(self._prefill)
        try:
            await leg.connect()
        except EngineFailure:
            leg.end()
            return False
        if self.over or not self._serving.may_retry():
            leg.end()
            return False
        return True

    async def _prefill_once(self) -> tuple[KVParams, Identity | None]:
        """P's parameters, and who they say that P is."""
        leg = self._prefill_leg
        if leg.begun:
            leg = self._prefill_leg = self._engines.leg(self._prefill)
        try:
            if not leg.connected:
                await leg.connect()
            body = prefill_body(self._request.body, self._family.prefill_params(self._id))
            self._serving.send_prefill(leg, self._request, body, self._id)
            answer = await leg.whole(self._engines.deadlines.prefill)
            params = handed_over(self._prefill, self._family, answer)
            self._prefill_connection = leg.connection
        except LegRefused:
            answer = leg.answer
            raise BadAnswer(self._prefill.name, "refused", Reason.STATUS, answer.status, answer.body) from None
        finally:
            leg.end()
        return params, identity_of(self._prefill, self._family, params)

    async def _tell_decode(self, failure: EngineFailure) -> None:
        if self.decode_leg.begun and isinstance(failure, BadAnswer) and failure.status < 500:
            await asyncio.sleep(_REFUSAL_SECONDS)
        self._prefill_failure = failure
        if not self.over:
            self.decode_leg.interrupt(failure)

    async def _finish(self) -> Settlement:
        settlement = Settlement.LEASE
        try:
            settlement = await self._finished()
        finally:
            self.conclude()
            self.decode_leg.end()
            self._let_go(expires=settlement is Settlement.LEASE)
        return settlement

    async def _finished(self) -> Settlement:
        parting = self._parting
        if self._prefill_task is None:
            if self.decode_leg.answer.status >= 400:
                self._prefill_leg.end()
                heard = self._meets and HTTP_BAD_REQUEST not in self.decode_leg.answer.body
                return await parting.unmet(None, refused=True) if heard else Settlement.FINISHED
            self._prefill_task = self._settlements.start(self._run_prefill())
        params = await self._prefill_task
        if params is None:
            return await parting.unmet(self._prefill_failure)
        if await parting.decode_takes_it(self.decode_leg):
            return Settlement.FINISHED
        if self._prefill_failure is not None:
            return parting.lost()
        return await parting.free(params)

    async def _unwind(
        self, prefill_task: "asyncio.Task[KVParams | None]", stop_prefill: bool, decode_waits: bool, heard: bool
    ) -> Settlement:
        settlement = Settlement.LEASE
        try:
            if stop_prefill:
                await asyncio.wait([prefill_task], timeout=self._engines.deadlines.nearly_done)
                self._prefill_leg.half_close()
            params = await prefill_task
            settlement = await self._unwound(params, decode_waits, heard)
        finally:
            self._let_go(expires=settlement is Settlement.LEASE)
        return settlement

    async def _unwound(self, params: KVParams | None, decode_waits: bool, heard: bool) -> Settlement:
        if params is None:
            if decode_waits or heard:
                return await self._parting.unmet(self._prefill_failure, refused=heard)
            return Settlement.PREFILL_STOPPED
        if self._meets and heard:
            return Settlement.RELEASED
        return Settlement.FINISHED if decode_waits else await self._parting.free(params)
