"""One push under one transfer ID, and the requests that free its KV blocks if it ends early."""

import asyncio
from typing import Final

from pdx_api.connectors.families import KVParams, Push, Settles
from pdx_api.vllm_metrics import read_waiting
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.probe import page_of
from pdx_proxy.engines.transfer_params import identity_of
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.result import FULL, REFUSED_MAX_TOKENS, has_answered, reached_engine
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure
from pdx_proxy.payload.body import prefill_body, settling_body
from pdx_proxy.telemetry.counters import Settlement

PUSH_SECONDS: Final = 0.1
"""How long a D without a stream gets, after P's end, to receive the KV."""
_METRICS_SECONDS: Final = 1.0
"""How long D may take to report what its requests wait for, before its leg is closed."""
_POLL_SECONDS: Final = 0.25
_ANSWER_SECONDS: Final = 0.01
"""How long a D without a stream gets to end its answer once it has the KV. A D that has ended it sends no notice."""
_RECEIVED_SECONDS: Final = 2.0
"""The same in families that settle by P's leg. There, a D without a stream notifies P when its leg is closed.

If P receives the notice before D has registered its blocks, P sends them no KV and no answer, and D keeps them.
"""
_NOTICE_SECONDS: Final = 1.0
"""How long D may take to notify P.

A P leg that arrived under the ID before the notice could replace KV that no D has received.
"""
_NOT_BEGUN: Final = (*range(400, 500), FULL)
"""Statuses of a P whose engine did not receive the leg."""


class PushTransfer:
    """The two endpoints, the request and the transfer ID of a push. Holds no state of the attempt."""

    __slots__ = ("by_prefill_leg", "call", "decode", "engines", "family", "id", "prefill", "request", "settlements")

    def __init__(self, settlements: Settlements, family: Push, pair: tuple[Endpoint, Endpoint], call: Call) -> None:
        self.settlements = settlements
        self.engines = settlements.engines
        self.family = family
        self.prefill, self.decode = pair
        self.call = call
        self.request = call.request
        self.id = settlements.engines.new_id()
        """The transfer ID, also the request ID of both legs."""
        self.by_prefill_leg = family.settles is Settles.BY_PREFILL_LEG
        """Whether D notifies P of a leg that it refuses or that is closed, and P then waits for its own leg."""

    async def end_decode(self, leg: Leg) -> Settlement | None:
        """Wait until D, whose leg this is, has the KV of a P that has finished; None if D does not get it.

        The caller must end the leg.
        """
        seconds = self._seconds_to_receive()
        end = self.engines.clock() + seconds + self.engines.deadlines.settle
        page, received = b"", self.request.stream or not self.by_prefill_leg
        while True:
            try:
                answer = await leg.first_event(seconds)
            except DeadlineExceeded:
                if received:
                    return await self._close_decode(leg, reports=bool(page))
            except EngineFailure:
                return None
            else:
                has_kv = answer.status == 200 or (self.by_prefill_leg and reached_engine(answer.body))
                return Settlement.FINISHED if has_kv else None
            page = await page_of(self.engines, self.decode, "/metrics", _METRICS_SECONDS)
            waiting = read_waiting(page)
            received = waiting is None or not waiting.deferred or self.engines.clock() >= end
            seconds = _ANSWER_SECONDS if received else _POLL_SECONDS

    def _seconds_to_receive(self) -> float:
        """How long D may take, after P's end, to show its first event, or else to receive the KV."""
        if self.request.stream:
            return self.engines.deadlines.settle
        return _RECEIVED_SECONDS if self.by_prefill_leg else PUSH_SECONDS

    async def _close_decode(self, leg: Leg, *, reports: bool) -> Settlement:
        """Settle with a D that has shown no event.

        vLLM 0.32 takes a closed leg without a stream for one that it has refused, whatever D has received. In families
        that settle by P's leg, D then notifies P, which waits for one more leg under this ID. A D that reports no
        metrics may be stopped, and sends no notice.
        """
        if self.request.stream or not self.by_prefill_leg:
            return Settlement.FINISHED
        leg.end()
        return await self.after_notice() if reports else Settlement.LEASE

    async def after_notice(self) -> Settlement:
        """Settle after D has been closed in a family that settles by P's leg.

        If D had only queued the request, it notifies P, which frees its KV. Without a stream, it sends one more notice.
        """
        if self.request.stream:
            return Settlement.RELEASED
        await asyncio.sleep(_NOTICE_SECONDS)
        return await self.substitute_prefill(None, refused=True)

    async def substitute_prefill(self, failure: Exception | None, *, refused: bool = False) -> Settlement:
        """P never completed a prefill under this ID. Send a substitute so that D (or P) stops waiting.

        It may be a one-token prompt only if D refused its request: a waiting D would cache that KV under the client's
        prompt. `failure` is the failure of P's leg.
        """
        if not self.by_prefill_leg or _has_begun(failure):
            return Settlement.LEASE if refused else self.report_lost()
        if await self._send_substitute(refused=refused):
            return Settlement.FINISHED
        return Settlement.LEASE if refused else self.report_lost()  # a D that refuses holds nothing

    async def after_prefill_failure(self, failure: Exception | None, *, queued: bool) -> Settlement:
        """Settle after P has failed, and D has been closed while it waited for KV, or only `queued` the request.

        In families that settle by P's leg, a D that queued the request notifies P. A D without a stream notifies P in
        any case. If such a notice arrives after P's next leg has ended, P waits for one more leg. So that leg is sent
        when the notices have arrived. It has the whole prompt even if D only queued the request, because D may have
        registered its blocks since it reported its queue.
        """
        settles = self.by_prefill_leg and not _has_begun(failure)
        if queued and not settles:
            return Settlement.PREFILL_STOPPED
        if queued and failure is not None and not has_answered(failure, (FULL,)):
            return Settlement.LEASE  # P would refuse the prompt again
        if settles and (queued or not self.request.stream):
            await asyncio.sleep(_NOTICE_SECONDS)
        if not queued:
            return await self.substitute_prefill(failure)
        return Settlement.FINISHED if await self._send_substitute(refused=False) else Settlement.LEASE

    async def _send_substitute(self, *, refused: bool) -> bool:
        """Send P a leg under this ID; return whether P has finished it."""
        params = self.family.prefill_params(self.id)
        request = self.request
        body = settling_body(request.body.api, params, 1, self.id) if refused else prefill_body(request.body, params)
        request_id = self.engines.new_id() if refused else self.id  # P may have had a leg that has this one
        return await self.settlements.call(self.prefill, request, body, request_id, settles=refused) == 200

    async def free(self, params: KVParams) -> Settlement:
        """Free the blocks of a finished P by a D leg under this ID: of one token, or one that D refuses."""
        others = [d for d in self.engines.snapshot.decode if d.revision == self.prefill.revision]
        decode = next((d for d in others if d.name != self.decode.name), self.decode)
        identity = identity_of(self.prefill, self.family, params)
        assert identity is not None, "a P that has finished has an identity"
        leg_params = self.family.decode_params(self.id, identity)
        max_tokens = REFUSED_MAX_TOKENS if self.by_prefill_leg else 1
        body = settling_body(self.request.body.api, leg_params, max_tokens, self.id)
        status = await self.settlements.call(decode, self.request, body, self.id, settles=True)
        freed = 400 <= status < 500 if self.by_prefill_leg else status == 200
        return Settlement.RELEASED if freed else Settlement.LEASE

    async def decode_only_queues(self) -> bool:
        """Whether no request at D waits for KV, so that D has allocated nothing for this push yet.

        Called while D still has its leg. D registers its blocks with P once it has scheduled the request, which then
        waits for KV (`deferred`). The metrics do not show which request waits: a queue (`capacity`) beside one that
        waits for KV leaves it open. It counts as queued then, because a loss counts against D until D restarts.
        """
        page = await page_of(self.engines, self.decode, "/metrics", _METRICS_SECONDS)
        waiting = read_waiting(page)
        return waiting is not None and (waiting.capacity > 0 or waiting.deferred == 0)

    def report_lost(self) -> Settlement:
        """Report that D waits for a push that never comes."""
        self.engines.observer.lost_handoff(self.decode)
        return Settlement.DECODE_LOST


def _has_begun(failure: Exception | None) -> bool:
    """Whether P's engine may have received the leg that has failed."""
    return failure is not None and not has_answered(failure, _NOT_BEGUN)
