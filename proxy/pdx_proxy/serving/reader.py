"""Reads the request of an exchange: its headers for engines, its parsed body, and whether it can be split."""

import asyncio
from typing import Final, cast

from pdx_api.settings.gateway import Keys
from pdx_proxy.admission.permit import Permit
from pdx_proxy.balancing.chooser import SESSION_HEADER
from pdx_proxy.handoff.request import Request, StreamStart
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.downstream.exchange import Exchange
from pdx_proxy.http.routes import Kind
from pdx_proxy.payload.body import LARGE_BYTES, Body, model_of, read_body, read_large_body
from pdx_proxy.telemetry.timeline import Timeline
from pdx_proxy.telemetry.trace_context import TRACEPARENT, TRACESTATE

_AUTHORIZATION: Final = "authorization"
_TRACE: Final = (TRACEPARENT, TRACESTATE)
"""Request IDs, ranks and priorities are not forwarded: they would control the inside of an engine."""
_MAX_MODEL: Final = 256
"""Characters of a model's name in a span, which waits for its export."""
_READ: Final = Kind.READ


def forwarded_headers(keys: Keys) -> tuple[str, ...]:
    """Names of the headers that go to engines. Clients' keys do not, if the gateway itself has keys."""
    return _TRACE if keys.clients is not None or keys.engines is not None else (_AUTHORIZATION, *_TRACE)


class RequestReader:
    """Reads requests of one worker."""

    __slots__ = ("_chooser", "_clock", "_forwarded", "_loop", "_total_seconds", "_without_trace")

    def __init__(self, serving: WorkerState) -> None:
        settings = serving.engines.settings
        self._chooser = serving.chooser
        self._clock = serving.engines.clock
        self._forwarded = forwarded_headers(settings.keys)
        self._without_trace = tuple(name for name in self._forwarded if name not in _TRACE)
        """For requests that are sampled: each of their legs has a trace context of its own."""
        self._loop = asyncio.get_running_loop()
        self._total_seconds = settings.deadlines.total_seconds

    async def read(
        self,
        exchange: Exchange,
        kind: Kind,
        raw: bytes | bytearray,
        timeline: Timeline,
        permit: Permit,
        keep_alive: StreamStart | None,
    ) -> Request:
        """The request with this body, which is complete; raises RefusedError.

        Its deadline counts from now, so that the client's sending does not use it up.
        """
        headers = exchange.headers
        names = self._forwarded if timeline.trace is None else self._without_trace
        deadline = self._loop.time() + self._total_seconds
        forwarded = tuple([(name, value) for name in names if (value := headers.get(name)) and value.isascii()])
        if kind is _READ:
            timeline.read = self._clock()
            return Request(exchange.path, Body(), forwarded, False, timeline, permit, deadline)
        content_type = headers.get("content-type", "")
        if len(raw) > LARGE_BYTES:
            body = await self._read_large(raw, content_type, exchange.path)
        else:
            body = read_body(raw, content_type, exchange.path, self._chooser.prompt_reader)
        body.join(headers.get(SESSION_HEADER, ""))
        divisible = self._chooser.may_split(kind, body)
        timeline.read = self._clock()
        timeline.stream = body.decisions.stream
        if timeline.trace is not None:
            timeline.trace.model = model_of(body)[:_MAX_MODEL]
        return Request(exchange.path, body, forwarded, divisible, timeline, permit, deadline, keep_alive)

    async def _read_large(self, raw: bytes | bytearray, content_type: str, path: str) -> Body:
        """Read a large body in slices. Other requests go on between two of them."""
        slices = read_large_body(raw, content_type, path, self._chooser.prompt_reader)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return cast("Body", end.value)
            await asyncio.sleep(0)
