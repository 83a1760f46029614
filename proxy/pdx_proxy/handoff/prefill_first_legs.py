"""Both legs where P finishes before D gets its leg (pull and pool): runs them, and reports what is true of them."""

from functools import partial
from math import inf
from typing import Final

from msgspec import Raw

from pdx_api.connectors.families import KVParams
from pdx_proxy.balancing.load import Room, Slot
from pdx_proxy.balancing.pick import replacement_decode
from pdx_proxy.endpoints.endpoint import Endpoint, pairing
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.attribution import may_be_kv
from pdx_proxy.engines.leg import WHOLE_BYTES
from pdx_proxy.engines.transfer_params import LegRefused, params_to_relay
from pdx_proxy.handoff.failures import REFUSED_MAX_TOKENS, HandoffFailure, judge
from pdx_proxy.handoff.pull_watch import PullWatch
from pdx_proxy.handoff.request import Request
from pdx_proxy.handoff.settle import Ask, CloseWhenOpen, Free
from pdx_proxy.handoff.settlements import LastStep, Legs, Settlements
from pdx_proxy.handoff.situation import (
    AVOIDED,
    Decode,
    Kind,
    Notifier,
    Prefill,
    Situation,
    decode_after,
    decode_after_refusal,
    kind_of,
)
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure
from pdx_proxy.payload.body import decode_body, may_reuse_tokens, prefill_body, settling_body
from pdx_proxy.payload.prompt_tokens import count, tokens_of
from pdx_proxy.telemetry.counters import Phase, Settlement

_PREFILL: Final = Phase.PREFILL.value
_PREFILL_NOT_SENT: Final = Prefill.NOT_SENT
_RUNNING: Final = Prefill.RUNNING
_FINISHED: Final = Prefill.FINISHED
_DECODE_NOT_SENT: Final = Decode.NOT_SENT
_OPEN: Final = Decode.OPEN
"""Plain names of members that every request uses: the lookup of a member in its class costs as much as a call."""
NO_ANSWER: Final = Answer()
_TOKEN_BYTES: Final = 8
"""Of a token as JSON. A prompt has no more tokens than bytes."""
_LATE_ANSWER_SECONDS: Final = 1.0
"""How long to wait for an answer that was on its way when the client left."""


class PrefillFirstLegs(Legs):
    """Both legs of one attempt."""

    __slots__ = (
        "_decode",
        "_engines",
        "_params",
        "_prefill",
        "_releaser",
        "_settlements",
        "decode_leg",
        "prefill_answer",
        "prefill_leg",
        "request",
    )

    def __init__(self, settlements: Settlements, room: Room, request: Request) -> None:
        self.request = request
        self._settlements = settlements
        self._engines = settlements.engines
        self.prefill_leg = settlements.serving.prefill_leg(room.take_prefill(), request)
        # D's load counts from now on. Otherwise all requests of one prefill's duration would select the same D.
        self.decode_leg = settlements.serving.decode_leg(room.take_decode(), request)
        self._prefill = _PREFILL_NOT_SENT
        self._decode = _DECODE_NOT_SENT
        self.prefill_answer = NO_ANSWER
        """P's whole answer, once P has finished."""
        self._params: KVParams | Raw | None = None
        """P's parameters for D; None: P keeps nothing for a D."""
        self._releaser = self.decode_leg.endpoint
        """The D that frees P's blocks if no D reads them."""

    async def finish_prefill(self, params: KVParams | None) -> KVParams | Raw | None:
        """Run P's leg to its end; return P's parameters for D. Raises EngineFailure or LegRefused.

        `params` are the parameters of P's leg. Without them P keeps nothing for a D.
        """
        request, leg, engines, serving = self.request, self.prefill_leg, self._engines, self._settlements.serving
        load, decode = engines.load, self.decode_leg.endpoint
        most = self._most_bytes()
        body = prefill_body(request.body, params, answers_tokens=params is not None and most > WHOLE_BYTES)
        load.begin_prefill(decode)
        try:
            await leg.connect()
            self._prefill = _RUNNING
            record = serving.send_prefill(leg, request, body, engines.new_id())
            answer = await leg.whole(engines.deadlines.prefill_seconds, most=most)
            answered = params_to_relay(leg.endpoint, answer, request.body.api)
            self.prefill_answer = answer
        finally:
            load.end_prefill(decode)
        leg.end()  # P has room for another request, although its blocks are pinned until D has read them
        self._prefill = _FINISHED
        timeline = request.timeline
        record.ended = engines.clock()
        timeline.prefill = record.ended - timeline.sent
        serving.counters.phases[_PREFILL].observe(timeline.prefill)
        if params is not None and answered is not None:
            self._params = answered
            serving.counters.pin(leg.endpoint.name)
        return self._params

    def replace_decode(self, before: Snapshot) -> None:
        """If the snapshot has changed since `before`, select a D of the same revision again.

        A D that began to terminate while P prefilled gets no leg.
        """
        engines = self._engines
        if engines.snapshot is not before:
            self.decode_leg.end()
            snapshot = self.request.selectable(engines.snapshot)
            decode = replacement_decode(snapshot, engines.load.of, self.decode_leg.endpoint, cursor=0)
            self.decode_leg = self._settlements.serving.decode_leg(Slot(engines.load, decode), self.request)

    async def open_answer(self, watch: PullWatch | None = None, finished: float = 0.0) -> Answer:
        """Send D its leg; return its answer when it is open. Raises EngineFailure.

        `watch` watches D's read from a P that finished at this time.

        D may queue the leg: its heartbeats renew P's lease meanwhile. Without P's parameters it may have to compute the
        prompt. So its first event has the deadline of a whole request.
        """
        request, leg, params, engines = self.request, self.decode_leg, self._params, self._engines
        await leg.connect()
        body = decode_body(request.body, params, b"" if params is None else self._tokens())
        self._settlements.serving.send(leg, request, body, engines.new_id(), once=params is not None)
        self._decode = _OPEN
        seconds = engines.deadlines.answer(stream=request.shows_output)
        if watch is None or params is None:
            return await leg.first_event(seconds)
        watch.add(leg, self.prefill_leg.endpoint, finished)
        try:
            return await leg.first_event(seconds)
        finally:
            watch.discard(leg)

    def _most_bytes(self) -> int:
        """How long P's answer may be: with the tokens of the prompt, if D may reuse them."""
        body = self.request.body
        reused = self.prefill_leg.endpoint.reuses_tokens and may_reuse_tokens(body)
        return WHOLE_BYTES + _TOKEN_BYTES * len(body.shared) if reused else WHOLE_BYTES

    def _tokens(self) -> bytes:
        """What P has made of the messages, for D. Empty if D would have to refuse the request for its length.

        With tokens, vLLM does not compare prompt and answer with the longest context, and would answer less.
        """
        decode, body = self.decode_leg.endpoint, self.request.body
        if not (decode.reuses_tokens and may_reuse_tokens(body)):
            return b""
        tokens, most = tokens_of(self.prefill_answer.body), body.decisions.most_tokens
        return tokens if most == inf or count(tokens) + most <= decode.longest else b""

    def fail(self, failure: EngineFailure) -> HandoffFailure:
        """An engine has failed: settle. Return the exception for the caller."""
        prefill, decode, observer = self.prefill_leg.endpoint, self.decode_leg.endpoint, self._engines.observer
        if self._prefill is not Prefill.FINISHED:
            blame = judge(failure, partial(observer.prefill_failed, prefill, failure))
            self.end(None)
            return HandoffFailure(prefill, failure, begun=self.prefill_leg.sent, blame=blame)
        if self._params is None:
            blame = judge(failure, partial(observer.answered_error, decode, failure))
            self.end(None)
        else:
            self.decode_leg.end()
            self._decode = decode_after(failure)
            self._settlements.settle(self)
            blame = judge(failure, partial(observer.handoff_answered_error, prefill, decode, failure))
        pair = pairing(prefill, decode) if may_be_kv(failure) else None
        return HandoffFailure(decode, failure, pair=pair, blame=blame)

    def refuse(self) -> None:
        """D has answered 4xx, or with an error event of the client: settle."""
        self._decode = decode_after_refusal(self.decode_leg.answer)
        self.decode_leg.end()
        self._settlements.settle(self)

    def abandon(self) -> None:
        """Nobody waits for the answer any more, mostly because the client has left: settle."""
        if self._prefill is Prefill.FINISHED and self._params is None:
            self.end(None)
            return
        self.prefill_leg.outlive_request()
        self.decode_leg.outlive_request()
        if self._decode is Decode.NOT_SENT:
            self.decode_leg.end()
        self._settlements.settle(self)

    def succeed(self, *, late: bool = False) -> None:
        """D has loaded P's KV. `late`: possibly long ago, because the answer is no stream."""
        serving, prefill, decode = self._settlements.serving, self.prefill_leg.endpoint, self.decode_leg.endpoint
        serving.counters.unpin(prefill.name)
        serving.mark_handshake(prefill, decode)
        self._engines.observer.handed_over(prefill, decode, late=late)

    def situation(self) -> Situation:
        kind, notifier = kind_of(self.prefill_leg.endpoint.family), Notifier.NOBODY
        if kind is Kind.PULL and self._prefill is Prefill.FINISHED:
            notifier = self._select_releaser()
        return Situation(kind, self.request.stream, self._prefill, self._decode, notifier)

    async def perform(self, step: Ask) -> None:
        """Wait for P's end or stop P. With its answer P may have finished."""
        leg, deadlines = self.prefill_leg, self._engines.deadlines
        try:
            if step is Ask.AWAIT_PREFILL:
                answer = await leg.whole(deadlines.prefill_seconds, most=self._most_bytes())
                self._prefill = Prefill.FINISHED if answer.status == 200 else Prefill.BROKEN
                return
            assert step is Ask.STOP_PREFILL, "only a push has the other steps"
            answer = await self._last_answer()
            self._params = params_to_relay(leg.endpoint, answer, self.request.body.api)
        except (EngineFailure, LegRefused):
            self._params = None
        finally:
            leg.end()
        self._prefill = Prefill.BROKEN
        if self._params is not None:
            self._prefill = Prefill.FINISHED
            self._settlements.serving.counters.pin(leg.endpoint.name)

    async def _last_answer(self) -> Answer:
        """Return the answer of a P that is nearly done, or whose answer is on its way when it is stopped."""
        try:
            return await self.prefill_leg.whole(self._engines.deadlines.nearly_done, most=self._most_bytes())
        except DeadlineExceeded:
            self.prefill_leg.half_close()
            return await self.prefill_leg.whole(_LATE_ANSWER_SECONDS, most=self._most_bytes())

    async def conclude(self, step: LastStep) -> Settlement:
        assert isinstance(step, Free | CloseWhenOpen), "a substitute belongs to a push"
        return await self._close_when_open(step) if isinstance(step, CloseWhenOpen) else await self._free(step)

    async def _free(self, step: Free) -> Settlement:
        """Free P's blocks by a D leg: one that D refuses, and then notifies P, or one that reads them."""
        self.decode_leg.end()
        settlements, request, params, decode = self._settlements, self.request, self._params, self._releaser
        assert params is not None, "a P that keeps KV has answered its parameters"
        leg_id = settlements.engines.new_id()
        if step is Free.BY_REFUSED_LEG:
            body = settling_body(request.body.api, params, REFUSED_MAX_TOKENS, leg_id)
            freed = 400 <= await settlements.send(decode, request, body, leg_id, short=True) < 500
        else:
            freed = await settlements.send(decode, request, prefill_body(request.body, params), leg_id) == 200
        return Settlement.RELEASED if freed else Settlement.LEASE

    async def _close_when_open(self, step: CloseWhenOpen) -> Settlement:
        seconds = self._engines.deadlines.settle if step.seconds is None else step.seconds
        try:
            await self.decode_leg.first_event(seconds)
        except DeadlineExceeded:
            return step.otherwise
        except EngineFailure:
            return Settlement.LEASE
        finally:
            self.decode_leg.end()
        return Settlement.RELEASED

    def _releasers(self) -> list[Endpoint]:
        """The decode engines that may free P's blocks. The pair's own comes last if it may no longer be selected."""
        decode, decodes = self.decode_leg.endpoint, self._engines.snapshot.decode
        same = [d for d in decodes if d.revision == decode.revision and d.wire == decode.wire]
        others = [d for d in same if d.name != decode.name]
        if self._decode in AVOIDED and others:
            return others
        return [decode, *others] if any(d.name == decode.name for d in decodes) else [*others, decode]

    def _select_releaser(self) -> Notifier:
        """Select the D that frees P's blocks: the first that can notify P, or else the first."""
        candidates, prefill, own = self._releasers(), self.prefill_leg.endpoint, self.decode_leg.endpoint
        has_handshake = self._settlements.serving.has_handshake
        notifiers = [decode for decode in candidates if has_handshake(prefill, decode)]
        self._releaser = (notifiers or candidates)[0]
        if any(decode.name == own.name for decode in notifiers):
            return Notifier.PAIR
        return Notifier.OTHER if notifiers else Notifier.NOBODY

    def end(self, result: Settlement | None) -> None:
        self.prefill_leg.end()
        self.decode_leg.end()
        if self._params is not None:
            self._settlements.unpin(self.prefill_leg.endpoint, expires=result is Settlement.LEASE)
