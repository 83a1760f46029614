"""The handlers of the serving port: parse, pick, hand off, relay, and one outcome for every request."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from pdx_api.connectors import family_of
from pdx_api.connectors.families import Pool, Pull
from pdx_api.names import PrefillFailure, Role
from pdx_proxy.admission.admission import Admission, ShedError
from pdx_proxy.admission.api_keys import Keyring
from pdx_proxy.balancing.chooser import SESSION_HEADER
from pdx_proxy.balancing.pick import Choice
from pdx_proxy.engines.transfer_params import LegRefused
from pdx_proxy.handoff import pool, pull, push
from pdx_proxy.handoff.base import Handoff, HandoffFailure
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.downstream.exchange import Exchange, answer
from pdx_proxy.http.messages import forwarded_headers
from pdx_proxy.http.routes import ROUTES, Kind
from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineFailure, RequestExpired
from pdx_proxy.payload.request import Body, RefusedError, Request, decode_body, error_body, read_body
from pdx_proxy.serving.relay import error_of, relay
from pdx_proxy.telemetry.access_log import AccessLog
from pdx_proxy.telemetry.counters import Local, Outcome, Phase
from pdx_proxy.telemetry.timeline import Timeline

_MAX_CLIENT_ID: Final = 256
_READ: Final = Kind.READ
_HEALTH: Final = Kind.HEALTH
_READY: Final = Kind.READY
_HANDOFF: Final = Phase.HANDOFF.value
_FIRST_TOKEN: Final = Phase.FIRST_TOKEN.value
_TOTAL: Final = Phase.TOTAL.value
_LEFT: Final = Outcome.CLIENT_LEFT
_INTERNAL: Final = Outcome.INTERNAL
_SPLIT: Final = Outcome.SPLIT
_WHOLE: Final = Outcome.WHOLE
"""Plain names of what is asked for with every request: to look a member up in its class takes as long as a call."""


class Gateway:
    """Serves exchanges with one worker's engines."""

    def __init__(
        self, serving: ServingState, settlements: Settlements, admission: Admission, keyring: Keyring, turn: int = 0
    ) -> None:
        engines = serving.engines
        self._serving = serving
        self._engines = engines
        self._loop = asyncio.get_running_loop()
        self._admission = admission
        self._keyring = keyring
        self._forwarded = forwarded_headers(engines.settings.keys)
        self._chooser = serving.chooser
        self._settlements = settlements
        self._turn = turn
        self._log = AccessLog(
            engines.settings.logs, engines.settings.workers, lambda: engines.snapshot.everything, engines.clock
        )
        self._slow_seconds = self._log.slow_seconds
        self.draining = False
        """Whether clients are to go elsewhere: every answer then closes its connection."""

    async def serve(self, exchange: Exchange) -> None:
        """Answer one request. Cancelled when the client leaves."""
        kind = self._answer_alone(exchange)
        if kind is None:
            return
        counters, clock = self._serving.counters, self._engines.clock
        counters.requests_in_flight += 1
        outcome = _INTERNAL
        raised: Exception | None = None
        began = clock()
        timeline = Timeline()
        permit = None
        try:
            permit = self._admission.enter(exchange, self._keyring.identify(exchange.headers))
            if permit.turn is not None:
                await self._admission.await_turn(permit)
                timeline.queued = clock() - began
            self._serving.budget.request(began)
            handoff = await self._hand_off(exchange, kind, timeline)
            permit.drop_body()
            outcome = Outcome.UNAVAILABLE if handoff is None else await self._answer(exchange, handoff, timeline)
        except RefusedError as refusal:
            exchange.drop_body()
            answer(exchange, refusal.status, refusal.body(), {**self._own_headers(exchange), **refusal.headers})
            outcome = Outcome.REFUSED
            if isinstance(refusal, ShedError):
                outcome = Outcome.SHED
                timeline.failures.append(refusal.reason.value)
        except RequestExpired as expired:
            answer(exchange, 504, error_of(expired), self._own_headers(exchange))
            outcome = Outcome.EXPIRED
        except asyncio.CancelledError:
            outcome = _LEFT
            raise
        except Exception as error:
            raised = error
            self._answer_internal(exchange)
        finally:
            if permit is not None:
                permit.leave()
            counters.requests_in_flight -= 1
            counters.outcomes[outcome] += 1
            seconds = clock() - began
            counters.phases[_TOTAL].observe(seconds)
            if seconds >= self._slow_seconds or (outcome is not _SPLIT and outcome is not _WHOLE):
                client_id = exchange.headers.get("x-request-id", "")
                self._log.note(exchange.path, client_id, outcome, timeline, seconds, raised)
            raised = None  # its traceback holds this frame

    def _answer_alone(self, exchange: Exchange) -> Kind | None:
        """Answer what no engine is asked for, or say how the request is to be served."""
        if self.draining:
            exchange.close_after()
        route = ROUTES.get(exchange.path)
        if route is None:
            answer(exchange, 404, b'{"detail":"Not Found"}', {})
        elif exchange.method != route[0]:
            answer(exchange, 405, b'{"detail":"Method Not Allowed"}', {"allow": route[0]})
        elif route[1] is _HEALTH:
            answer(exchange, 200, b"", {})
        elif route[1] is _READY:
            self._answer_ready(exchange)
        else:
            return route[1]
        return None

    def _answer_ready(self, exchange: Exchange) -> None:
        if self._engines.snapshot.decode and not self.draining:
            answer(exchange, 200, b"", {})
        else:
            answer(exchange, 503, _unavailable("No engine is ready."), {})

    def _answer_internal(self, exchange: Exchange) -> None:
        """An error of the gateway's own: the client sees a 500, or a cut of what has begun."""
        if exchange.begun:
            exchange.abort()
            return
        exchange.drop_body()
        body = error_body(500, "The gateway failed to serve the request.", "InternalServerError")
        answer(exchange, 500, body, self._own_headers(exchange))

    async def _hand_off(self, exchange: Exchange, kind: Kind, timeline: Timeline) -> Handoff | None:
        """The first attempt that succeeds; None when the client has been told that none did.

        The request ends here: its body is not kept while the answer is relayed.
        """
        request = await self._read(exchange, kind, timeline)
        divisible, refused = request.split, False
        retries = self._engines.settings.retries
        avoid: set[str] = set()
        last: EngineFailure | None = None
        tries = retries.attempts
        while tries:
            tries -= 1
            self._turn += 1
            split = request.split and (tries > 0 or last is None or retries.on_prefill_failure is PrefillFailure.FAIL)
            choice = self._chooser.choose(self._engines.snapshot, request, split=split, avoid=avoid, turn=self._turn)
            if choice is None:
                break
            try:
                handoff = await self._attempt(choice, request, exchange.method)
            except LegRefused:
                request, refused = request.whole(), True
                tries = max(tries, 1)
                continue
            except HandoffFailure as failure:
                avoid.add(failure.endpoint.name)
                last = failure.cause
                self._serving.counters.retried(last.reason)
                timeline.failures.append(last.reason.value)
                if failure.endpoint is choice.prefill and retries.on_prefill_failure is not PrefillFailure.RETRY:
                    if retries.on_prefill_failure is PrefillFailure.FAIL:
                        break
                    request = request.whole()
                if tries and failure.begun and not self._serving.may_retry():
                    break
            else:
                if divisible and handoff.prefill is None:
                    self._count_local(choice, handoff, _why_local(choice, split, refused, bool(avoid)))
                return handoff
        self._answer_unavailable(exchange, last)
        return None

    async def _read(self, exchange: Exchange, kind: Kind, timeline: Timeline) -> Request:
        headers = exchange.headers
        found = [(name, headers.get(name, "")) for name in self._forwarded]
        until = self._loop.time() + self._engines.deadlines.total
        forwarded = tuple([(name, value) for name, value in found if value and value.isascii()])
        if kind is _READ:
            timeline.read = self._engines.clock()
            return Request(exchange.path, Body(), forwarded, split=False, until=until, timeline=timeline)
        body = read_body(await exchange.body(), headers.get("content-type", ""), self._chooser.look)
        split = self._chooser.may_split(kind, exchange.path, body)
        timeline.read = self._engines.clock()
        timeline.stream = bool(body.fields.get("stream"))
        return Request(exchange.path, body, forwarded, split, headers.get(SESSION_HEADER, ""), until, timeline)

    def _attempt(self, choice: Choice, request: Request, method: str) -> Coroutine[Any, Any, Handoff]:
        """One attempt: both legs, or D alone. Raises HandoffFailure or LegRefused when awaited."""
        prefill, decode = choice.prefill, choice.decode
        if prefill is None:
            return self._whole(choice, request, method)
        family = family_of(prefill.connector, prefill.order, prefill.spec.protocol)
        if isinstance(family, Pull):
            return pull.hand_off(self._serving, self._settlements, family, (prefill, decode), request)
        if isinstance(family, Pool):
            return pool.hand_off(self._serving, self._settlements, family, (prefill, decode), request)
        return push.hand_off(self._serving, self._settlements, family, prefill.order, (prefill, decode), request)

    async def _whole(self, choice: Choice, request: Request, method: str) -> Handoff:
        leg = self._engines.leg(choice.decode, request.until)
        try:
            await leg.connect()
            body = decode_body(request.body, None) if method == "POST" else b""
            self._serving.send(leg, request, body, self._engines.new_id(), method)
            await leg.opened(self._engines.deadlines.first_event)
        except EngineFailure as failure:
            leg.end()
            if not isinstance(failure, BadAnswer):
                self._engines.suspect(choice.decode, failure)
            raise HandoffFailure(choice.decode, failure, begun=leg.begun) from failure
        except BaseException:
            leg.end()
            raise
        return Handoff(leg)

    async def _answer(self, exchange: Exchange, handoff: Handoff, timeline: Timeline) -> Outcome:
        phases, status = self._serving.counters.phases, handoff.decode.answer.status
        if handoff.prefill is not None:
            timeline.handoff = handoff.handoff_seconds
            if timeline.stream:  # of others the first event is the whole answer, which says how long it is
                phases[_HANDOFF].observe(handoff.handoff_seconds)
        timeline.first = self._engines.clock() - timeline.read + timeline.queued
        if timeline.stream and status == 200:
            phases[_FIRST_TOKEN].observe(timeline.first)
        try:
            idle = self._engines.deadlines.idle
            headers = self._headers(exchange, handoff)
            failure = await relay(exchange, handoff.decode, headers, idle, self._serving.counters)
        finally:
            handoff.decode.end()
        if failure is not None:
            return self._broken(handoff, failure)
        if status >= 400:
            return Outcome.REFUSED_BY_ENGINE
        return _SPLIT if handoff.prefill is not None else _WHOLE

    def _count_local(self, choice: Choice, handoff: Handoff, why: Local) -> None:
        if choice.decode.role is Role.DECODE and handoff.decode.answer.status == 200:
            self._serving.counters.local_prefills[why.value] += 1

    def _broken(self, handoff: Handoff, failure: EngineFailure | RequestExpired) -> Outcome:
        if isinstance(failure, RequestExpired):
            return Outcome.EXPIRED
        self._engines.suspect(handoff.decode.endpoint, failure)
        return Outcome.IDLE if isinstance(failure, DeadlineExceeded) else Outcome.BROKEN

    def _own_headers(self, exchange: Exchange) -> dict[str, str]:
        """The client's request id, given back as it came."""
        client_id = exchange.headers.get("x-request-id", "")
        return {"x-request-id": client_id[:_MAX_CLIENT_ID]} if client_id and client_id.isascii() else {}

    def _headers(self, exchange: Exchange, handoff: Handoff) -> Mapping[str, str]:
        headers = self._own_headers(exchange)
        if not self._engines.settings.debug_headers:
            return headers
        headers["x-pdx-decode"] = handoff.decode.endpoint.name
        if handoff.prefill is not None:
            headers["x-pdx-prefill"] = handoff.prefill.name
            headers["server-timing"] = (
                f"prefill;dur={handoff.prefill_seconds * 1000:.1f}, handoff;dur={handoff.handoff_seconds * 1000:.1f}"
            )
        return headers

    def _answer_unavailable(self, exchange: Exchange, last: EngineFailure | None) -> None:
        headers = {**self._own_headers(exchange), "retry-after": "1"}
        if isinstance(last, BadAnswer) and last.body and last.status >= 500:
            answer(exchange, last.status, last.body, headers)
        elif last is None:
            answer(exchange, 503, _unavailable("No engine is ready."), headers)
        else:
            answer(exchange, 503, _unavailable("No engine could answer the request."), headers)


def _why_local(choice: Choice, split: bool, refused: bool, failed: bool) -> Local:
    """Why D prefills a request that could have been split."""
    if choice.prefill is not None:
        return Local.NOTHING
    if refused:
        return Local.REFUSED
    return Local.NO_PREFILL if split and not failed else Local.FAILED


def _unavailable(message: str) -> bytes:
    return error_body(503, message, "ServiceUnavailableError")
