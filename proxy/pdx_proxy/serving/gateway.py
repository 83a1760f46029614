"""The handler of the serving port: admit, read, hand off, relay, and count one outcome for every request."""

import asyncio
from collections.abc import Mapping
from typing import Final

from pdx_proxy.admission.admission import Admission
from pdx_proxy.admission.api_keys import Keyring
from pdx_proxy.admission.permit import Permit
from pdx_proxy.handoff.request import Handoff
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.http.cors import CORSPolicy
from pdx_proxy.http.downstream.exchange import Exchange, own_headers
from pdx_proxy.http.routes import ROUTES, Kind
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EndedEarly, EngineFailure, LostConnection, RequestExpired
from pdx_proxy.serving.answers import answer_error, answer_unavailable
from pdx_proxy.serving.attempts import Attempts, Unserved
from pdx_proxy.serving.isolation import Isolation
from pdx_proxy.serving.local_answers import FRESH, LocalAnswers
from pdx_proxy.serving.reader import RequestReader
from pdx_proxy.serving.relay import relay
from pdx_proxy.serving.stream_keep_alive import STREAMED, StreamKeepAlive
from pdx_proxy.telemetry.access_log import AccessLog
from pdx_proxy.telemetry.counters import Outcome, Phase
from pdx_proxy.telemetry.timeline import Timeline

_GENERATE: Final = Kind.GENERATE
_READ: Final = Kind.READ
_WHOLE_KIND: Final = Kind.WHOLE
_HANDOFF: Final = Phase.HANDOFF.value
_FIRST_TOKEN: Final = Phase.FIRST_TOKEN.value
_TOTAL: Final = Phase.TOTAL.value
_CLIENT_LEFT: Final = Outcome.CLIENT_LEFT
_INTERNAL: Final = Outcome.INTERNAL
_SPLIT: Final = Outcome.SPLIT
_WHOLE: Final = Outcome.WHOLE
"""Plain names of members that every request uses: the lookup of a member in its class costs as much as a call."""


class Gateway:
    """Serves exchanges with one worker's engines."""

    def __init__(
        self, settlements: Settlements, admission: Admission, isolation: Isolation, keyring: Keyring, cursor: int = 0
    ) -> None:
        serving, engines = settlements.serving, settlements.engines
        self._serving = serving
        self._clock = engines.clock
        self._admission = admission
        self._keyring = keyring
        self._reader = RequestReader(serving)
        self._attempts = Attempts(settlements, admission, isolation, cursor)
        self._log = AccessLog(engines.settings.logs, engines.settings.workers, self._roles, engines.clock)
        origins = engines.settings.cors.allowed_origins
        self._cors = CORSPolicy(origins) if origins else None
        self._local = LocalAnswers(engines, keyring, self._cors)
        self.draining = False
        """Whether clients must connect elsewhere: every answer then closes its connection."""

    async def serve(self, exchange: Exchange) -> None:
        """Answer one request. Cancelled when the client disconnects."""
        kind = self._route(exchange)
        if kind is None:
            return
        began, timeline = self._clock(), Timeline()
        serving = self._serving
        tracing = serving.tracing
        if tracing is not None:
            timeline.trace = tracing.sampler.sample(exchange.headers)
        serving.counters.requests_in_flight += 1
        outcome = _INTERNAL
        raised: Exception | None = None
        permit: Permit | None = None
        keep_alive: StreamKeepAlive | None = None
        keep_alive_seconds = serving.engines.settings.streams.stream_keep_alive_seconds
        if keep_alive_seconds and exchange.path in STREAMED:
            exchange = keep_alive = StreamKeepAlive(exchange, keep_alive_seconds)
        try:
            permit = self._admission.acquire(exchange, self._keyring.identify(exchange.headers))
            # No name here for the body or the request: the body would be kept while the answer is relayed.
            bodies: list[bytes | bytearray] = [b"" if kind is _READ else await exchange.body()]
            result = await self._attempts.run(
                await self._reader.read(exchange, kind, bodies.pop(), timeline, permit, keep_alive),
                "GET" if kind is _READ else "POST",
                exchange,
            )
            permit.drop_body()
            outcome = await self._answer(exchange, result, timeline, permit)
        except asyncio.CancelledError:
            outcome = _CLIENT_LEFT
            raise
        except Exception as error:
            outcome = answer_error(exchange, error, timeline)
            raised = error if outcome is _INTERNAL else None
        finally:
            if keep_alive is not None:
                keep_alive.end()
            now = self._clock()
            if permit is not None:
                permit.release(now - timeline.read)
            self._finish(exchange, outcome, timeline, now - began, raised)
            raised = None  # its traceback holds this frame

    def _finish(
        self, exchange: Exchange, outcome: Outcome, timeline: Timeline, seconds: float, raised: Exception | None
    ) -> None:
        """Count the outcome and the time, and log a request that failed or was slow."""
        counters, tracing = self._serving.counters, self._serving.tracing
        counters.requests_in_flight -= 1
        counters.outcomes[outcome] += 1
        counters.phases[_TOTAL].observe(seconds)
        if tracing is not None and (timeline.trace is not None or self._log.concerns(outcome, timeline, seconds)):
            tracing.end((exchange.method, exchange.path, exchange.headers), outcome, timeline, seconds)
        if seconds >= self._log.slow_seconds or (outcome is not _SPLIT and outcome is not _WHOLE):
            client_id = exchange.headers.get("x-request-id", "")
            self._log.note(exchange.path, client_id, outcome, timeline, seconds, raised)

    def _route(self, exchange: Exchange) -> Kind | None:
        """How the request is served; None if it needs no engine and is answered here."""
        if self.draining:
            exchange.close_after()
        if self._cors is not None:
            exchange.allow_origin(self._cors.lines(exchange.headers))
        route, method = ROUTES.get(exchange.path), exchange.method
        if route is not None:
            kind = route[1]
            if (kind is _GENERATE or kind is _WHOLE_KIND) and method == "POST":
                return kind
            if kind is _READ and (method == "GET" or method == "HEAD"):
                return kind
        self._local.answer(exchange, draining=self.draining)
        return None

    async def _answer(
        self, exchange: Exchange, result: Handoff | Unserved, timeline: Timeline, permit: Permit
    ) -> Outcome:
        if isinstance(result, Unserved):
            return answer_unavailable(exchange, result.last, timeline, deadly=result.deadly, at_fault=result.at_fault)
        leg, received = result.decode, result.decode.answer
        self._observe(result, timeline)
        try:
            headers = self._headers(exchange, result, timeline)
            engines = self._serving.engines
            failure = await relay(
                exchange,
                leg,
                headers,
                engines.deadlines.idle_seconds,
                self._serving.counters,
                timeline.trace,
                engines if result.may_be_silent else None,
                result.hits,
            )
        except asyncio.CancelledError:
            self._attempts.left(result, exchange, permit)
            raise
        finally:
            leg.end()
        if failure is not None:
            if isinstance(failure, LostConnection):
                self._attempts.broken(result, exchange, permit)
            return self._broken(result, failure)
        self._serving.engines.observer.completed(leg.endpoint)
        if received.status >= 400 or received.refused:
            return Outcome.REFUSED_BY_ENGINE
        return _SPLIT if result.prefill is not None else _WHOLE

    def _observe(self, handoff: Handoff, timeline: Timeline) -> None:
        """Record the time to the first event. Without a stream that is the whole answer, whose length varies."""
        phases = self._serving.counters.phases
        status = timeline.status = handoff.decode.answer.status
        if handoff.prefill is not None and timeline.stream:
            phases[_HANDOFF].observe(timeline.handoff)
        timeline.first = self._clock() - timeline.read + timeline.queued
        if timeline.stream and status == 200:
            phases[_FIRST_TOKEN].observe(timeline.first)

    def _broken(self, handoff: Handoff, failure: EngineFailure | RequestExpired) -> Outcome:
        """The outcome of an answer that broke. Its engine is probed, unless only the request has expired."""
        if isinstance(failure, RequestExpired):
            return Outcome.EXPIRED
        self._serving.counters.broke(handoff.decode.endpoint.name)
        if isinstance(failure, EndedEarly):
            return Outcome.BROKEN
        self._serving.engines.observer.suspect(handoff.decode.endpoint, failure)
        return Outcome.IDLE if isinstance(failure, DeadlineExceeded) else Outcome.BROKEN

    def _headers(self, exchange: Exchange, handoff: Handoff, timeline: Timeline) -> Mapping[str, str]:
        headers = own_headers(exchange)
        if exchange.method != "POST":
            headers.update(FRESH)
        if not self._serving.engines.settings.debug_headers:
            return headers
        headers["x-pdx-decode"] = handoff.decode.endpoint.name
        timing = f"queue;dur={timeline.queued * 1000:.2f}, first;dur={timeline.first * 1000:.2f}"
        if handoff.prefill is not None:
            headers["x-pdx-prefill"] = handoff.prefill.name
            timing += (
                f", prefill;dur={max(timeline.prefill, 0.0) * 1000:.2f}, handoff;dur={timeline.handoff * 1000:.2f}"
            )
        headers["server-timing"] = timing
        return headers

    def _roles(self) -> Mapping[str, str]:
        """Roles of the present endpoints by name."""
        return {endpoint.name: str(endpoint.role) for endpoint in self._serving.engines.snapshot.everything}
