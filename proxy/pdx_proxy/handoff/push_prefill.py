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
from pdx_proxy.engines.death_checks import may_have_died
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import LegRefused, PrefillStopped, handed_over, identity_of
from pdx_proxy.handoff.failures import FULL, PrefillEnded, has_answered
from pdx_proxy.handoff.push_watch import PushWatch
from pdx_proxy.handoff.request import CacheHits
from pdx_proxy.handoff.settle import Ask, Free
from pdx_proxy.handoff.settlements import LastStep, Legs
from pdx_proxy.handoff.situation import Decode, Prefill, Situation, kind_of, prefill_after
from pdx_proxy.handoff.transfer import Transfer
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ConnectFailure,
    EngineBusy,
    EngineFailure,
    EngineUnready,
    LostConnection,
    Reason,
    RequestExpired,
)
from pdx_proxy.payload.body import prefill_body
from pdx_proxy.telemetry.counters import Phase, Settlement

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

    __slots__ = ("_concluded", "_decode_leg", "_kv", "_transfer", "_watch", "failure", "hits", "leg", "task")

    def __init__(self, transfer: Transfer, slot: Slot, decode_leg: Leg) -> None:
        self._transfer = transfer
        self._decode_leg = decode_leg
        self.leg = transfer.settlements.serving.prefill_leg(slot, transfer.request, outlives=True)
        self.task: asyncio.Task[KVParams | None] | None = None
        """Returns P's parameters, or None after a failure. None until P's leg may be sent."""
        self.failure: Exception | None = None
        """A failure of P, or an error of the gateway itself."""
        self._concluded = False
        """Whether D no longer needs P. P's leg is then not sent again."""
        self._kv = _NONE
        self._watch = PushWatch(transfer, decode_leg)
        self.hits = CacheHits()
        """What P has found in its cache, once it has finished."""

    @property
    def state(self) -> Prefill:
        """What is true of P's leg."""
        task = self.task
        if task is None:
            return Prefill.NOT_SENT
        if not task.done():
            return Prefill.RUNNING
        if task.result() is None:
            return prefill_after(self.failure)
        return Prefill.DIED if self._watch.died else Prefill.FINISHED

    @property
    def transfer_seconds(self) -> float:
        """For how long P has finished and D has had its leg, so that KV may move; 0 until then."""
        return self._watch.transfer_seconds

    async def connect(self) -> None:
        """Connect to P; raises EngineFailure, also for a P that has restarted since its warm-up.

        Where P's answers hold no identity, P is queried for it, except over a connection that was used before: its
        other end is still the same process.
        """
        await self.leg.connect()
        source, prefill = self._transfer.family.identity, self._transfer.prefill
        if not isinstance(source, AtBootstrap) or self.leg.connection.used:
            return
        if await query_identity(self._transfer.settlements.engines, prefill, source) != prefill.identity:
            raise LostConnection(prefill.name, _RESTARTED)

    def start(self) -> "asyncio.Task[KVParams | None]":
        """Send P's leg, in a task that runs to its end."""
        assert self.task is None, "P gets one leg"
        self.task = self._transfer.settlements.start(self._run(), self._transfer.request.permit)
        return self.task

    async def finish(self) -> None:
        """Send P's leg and wait until it has ended; raises PrefillEnded for its failure, or RequestExpired."""
        task, deadline = self.start(), self._transfer.request.deadline
        try:
            async with asyncio.timeout_at(None if deadline == inf else deadline):
                await asyncio.shield(task)
        except TimeoutError:
            raise RequestExpired from None
        self.check()

    def check(self) -> None:
        """Raise the failure of P, if any."""
        if isinstance(self.failure, EngineFailure):
            raise PrefillEnded(self.failure)
        if self.failure is not None:
            raise self.failure
        if self._watch.died:
            raise PrefillEnded(self._watch.loss)

    def decode_sent(self) -> None:
        """D has its leg."""
        self._watch.decode_sent()

    def conclude(self) -> None:
        """D no longer needs P: stop watching P."""
        self._concluded = True
        self._watch.stop()

    async def end(self, *, stop: bool) -> None:
        """Wait until P has ended. `stop`: stop P unless it is nearly done."""
        assert self.task is not None, "P has its leg"
        if stop:
            await asyncio.wait([self.task], timeout=self._transfer.settlements.engines.deadlines.nearly_done)
            self.leg.half_close()
        await self.task

    def unpin(self, *, expires: bool = False) -> None:
        """P's KV is free at once, or (`expires`) when its lease ends."""
        if self._kv is _PINNED:
            self._kv = _DONE
            self._transfer.settlements.unpin(self._transfer.prefill, expires=expires)

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
            if not self._concluded:
                self._decode_leg.interrupt(error)
            return None

    async def _send_until_done(self) -> KVParams | None:
        """Send P's leg, and once more under the same ID if it is lost while D waits.

        Unless a retry is allowed, the client gets its error at once. The second leg then only releases D's blocks.
        """
        transfer = self._transfer
        engines = transfer.settlements.engines
        began = engines.clock()
        waits = engines.settings.retries.on_prefill_failure is PrefillFailure.RETRY
        for left in reversed(range(_PREFILL_TRIES)):
            try:
                params, identity = await self._send()
            except EngineFailure as failure:
                if isinstance(failure, EngineBusy):
                    transfer.settlements.serving.back_off(transfer.prefill, failure, transfer.request)
                again = left > 0 and self._may_resend(failure) and await self._lives(failure)
                again = again and await self._can_resend()
                if not (again and waits):
                    await self._fail_decode(failure)
                if again:
                    continue
                return None
            if identity != transfer.prefill.identity:
                transfer.settlements.settle(Stray(transfer, params))
                await self._fail_decode(LostConnection(transfer.prefill.name, _RESTARTED))
                return None
            self._succeed(began)
            return params
        return None

    async def _send(self) -> tuple[KVParams, Identity | None]:
        """Send P's leg once; return P's parameters and the identity that they name."""
        transfer, leg = self._transfer, self.leg
        prefill, family, request, serving = (
            transfer.prefill,
            transfer.family,
            transfer.request,
            transfer.settlements.serving,
        )
        try:
            if not leg.connected:
                await leg.connect()
            body = prefill_body(request.body, family.prefill_params(transfer.id))
            record = serving.send_prefill(leg, request, body, transfer.id)
            answer = await leg.whole(serving.engines.deadlines.prefill_seconds)
            params = handed_over(prefill, family, answer, request.body.api)
            record.ended = serving.engines.clock()
            self.hits.read(request.path, answer)
            self._watch.answered(leg.connection)
        except PrefillStopped:
            raise
        except LegRefused:
            answer = leg.answer
            raise BadAnswer(prefill.name, "refused", Reason.STATUS, answer.status, answer.body) from None
        finally:
            leg.end()
        return params, identity_of(prefill, family, params)

    def _may_resend(self, failure: EngineFailure) -> bool:
        """Whether the same leg may succeed at the same P, for a D that waits."""
        if self._concluded or not self._decode_leg.sent or isinstance(failure, ConnectFailure | EngineUnready):
            return False
        if self._transfer.notifies:
            return has_answered(failure, (FULL,))
        return not (isinstance(failure, BadAnswer) and failure.status < 500)

    async def _lives(self, failure: EngineFailure) -> bool:
        """Whether P has not died. The leg may have killed it, so a P that has died does not get it again."""
        transfer = self._transfer
        return not (may_have_died(failure) and await transfer.settlements.serving.death_checks.died(transfer.prefill))

    async def _can_resend(self) -> bool:
        """Whether P accepts a connection, D still waits and the retry budget allows it.

        A P that is gone takes nothing from the budget, because all of its requests fail at once.
        """
        transfer, serving = self._transfer, self._transfer.settlements.serving
        leg = self.leg = serving.prefill_leg(
            Slot(serving.engines.load, transfer.prefill), transfer.request, outlives=True
        )
        try:
            await leg.connect()
        except EngineFailure:
            leg.end()
            return False
        if self._concluded or not serving.may_retry():
            leg.end()
            return False
        return True

    async def _fail_decode(self, failure: EngineFailure) -> None:
        """Interrupt D's wait. If P refused the request, D gets some time to refuse it first."""
        if self._decode_leg.sent and isinstance(failure, BadAnswer) and failure.status < 500:
            await asyncio.sleep(_REFUSAL_SECONDS)
        self.failure = failure
        if not self._concluded:
            self._decode_leg.interrupt(PrefillEnded(failure))

    def _succeed(self, began: float) -> None:
        """P has finished. Pin its KV, unless D's first event was faster than P's answer."""
        self._watch.prefilled()
        transfer, serving = self._transfer, self._transfer.settlements.serving
        seconds = transfer.request.timeline.prefill = serving.engines.clock() - began
        serving.counters.phases[Phase.PREFILL].observe(seconds)
        if self._kv is _NONE:
            self._kv = _PINNED
            serving.counters.pin(transfer.prefill.name)
        if not self._concluded:
            self._watch.start(shows_output=transfer.request.shows_output)


class Stray(Legs):
    """P's finished leg, of another start of the engine than the one that D was sent to: nobody reads its KV."""

    __slots__ = ("_params", "_transfer", "request")

    def __init__(self, transfer: Transfer, params: KVParams) -> None:
        self.request = transfer.request
        self._transfer = transfer
        self._params = params

    def situation(self) -> Situation:
        kind = kind_of(self._transfer.family)
        return Situation(kind, self.request.stream, Prefill.FINISHED, Decode.NOT_SENT)

    async def perform(self, step: Ask) -> None:
        raise AssertionError(f"nothing to wait for: {step}")

    async def conclude(self, step: LastStep) -> Settlement:
        freed = await self._transfer.free(self._params, refused=step is Free.BY_REFUSED_LEG)
        return Settlement.RELEASED if freed else Settlement.LEASE

    def end(self, result: Settlement | None) -> None:
        """Its leg has ended, and its KV was never counted as pinned."""
