"""Relays an engine's open answer to the client, byte for byte."""

import asyncio
from collections.abc import Mapping
from typing import Final

from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.handoff.request import CacheHits
from pdx_proxy.http.downstream.exchange import Exchange, connection_header, own_lines
from pdx_proxy.http.messages import answer_head
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.connection import Sink
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EndedEarly, EngineFailure, LostConnection, RequestExpired
from pdx_proxy.payload.apis import APIS
from pdx_proxy.payload.cache_hits import UNKNOWN, with_hits
from pdx_proxy.serving.params_sink import ParamsSink, without_params
from pdx_proxy.serving.silence import await_end
from pdx_proxy.serving.stream_end import Break, break_of, is_whole, stream_end
from pdx_proxy.serving.usage_sink import UsageSink
from pdx_proxy.telemetry.counters import Counters
from pdx_proxy.telemetry.trace_context import Trace

SHUTTING_DOWN: Final = "The gateway is shutting down."
_SHUT_DOWN: Final = Break(503, SHUTTING_DOWN, "ServiceUnavailableError")
UNBUFFERED: Final[Mapping[str, str]] = {"x-accel-buffering": "no"}
"""Header of streams: nginx then passes on each event as it comes (nginx.org, ngx_http_proxy_module)."""
_TAIL_BYTES: Final = 2048
"""The end of an answer that may contain its usage: the last event of a stream, or the members behind the text."""
_EVENT_END: Final = b"\n\n\r\n"
"""The end of a chunk that holds whole events. A JSON event contains no bare carriage return."""
_EVENT_END_CRLF: Final = b"\r\n\r\n\r\n"
"""The same for an engine whose lines end in CR LF. Two empty lines within a chunk look alike."""


class TailSink:
    """Passes an answer on to the client, and keeps its end for the trace."""

    __slots__ = ("_exchange", "_trace")

    def __init__(self, exchange: Exchange, trace: Trace) -> None:
        self._exchange = exchange
        self._trace = trace

    def write(self, data: bytes) -> None:
        self._trace.tail = (self._trace.tail + data)[-_TAIL_BYTES:]
        self._exchange.write(data)


async def relay(
    exchange: Exchange,
    leg: Leg,
    headers: Mapping[str, str],
    idle: float,
    counters: Counters,
    trace: Trace | None = None,
    engines: Engines | None = None,
    hits: CacheHits | None = None,
) -> EngineFailure | RequestExpired | None:
    """Relay the answer, with `headers` added to its head. Return the failure that broke it, or None.

    The answer breaks when the engine sends nothing for `idle` seconds. The caller still owns the leg. `trace` receives
    the end of the answer. `engines`: the engine may generate without sending anything, so its metrics decide.
    """
    answer = leg.answer
    counters.chunks += 1
    if answer.complete:
        body = answer.body
        if leg.endpoint.shows_params:
            body = without_params(body, stream=answer.framed or answer.is_event_stream)
        if hits is not None and hits.tokens != UNKNOWN and answer.status == 200:
            body = with_hits(exchange.path, body, hits.tokens)
        if trace is not None:
            trace.tail = body[-_TAIL_BYTES:]
        framing = {"content-length": str(len(body)), **connection_header(exchange), **headers}
        if answer.framed:
            framing.update(UNBUFFERED)
        exchange.write(answer_head(answer.status, answer.headers, framing, own_lines(exchange)) + body)
        return _check_end(exchange, leg, body)
    head, raw = _open_head(exchange, answer, headers)
    sink: Sink = exchange if trace is None else TailSink(exchange, trace)
    usage = None
    if hits is not None and answer.status == 200:
        chunked = raw and answer.framed
        usage = UsageSink(sink, hits, exchange.path, chunked=chunked, fixed=raw and not chunked)
    shows = leg.endpoint.streams_params if answer.framed else leg.endpoint.shows_params
    params = ParamsSink(usage or sink) if shows else None
    begin = leg.relay(params or usage or sink, raw=raw)
    if params is not None:
        begin = params.change(begin)
    exchange.write(head + (begin if usage is None else usage.change(begin)))
    exchange.bind_upstream(leg)
    counters.relays.add(leg)
    try:
        await (leg.relayed(idle) if engines is None else await_end(engines, leg, idle))
        _flush(params, usage)
    except (LostConnection, DeadlineExceeded, RequestExpired) as failure:
        _flush(params, usage)
        _cut(exchange, leg, raw, break_of(failure))
        return failure
    except asyncio.CancelledError:  # the client has left, and no write reaches it; or the gateway shuts down
        _cut(exchange, leg, raw, _SHUT_DOWN)
        raise
    finally:
        counters.relays.discard(leg)
        counters.chunks += leg.relayed_chunks
        exchange.bind_upstream(None)
        leg.resume()  # the next exchange on its connection has another client
    return _check_end(exchange, leg, leg.last_chunk)


def _flush(params: ParamsSink | None, usage: UsageSink | None) -> None:
    if params is not None:
        params.flush()
    if usage is not None:
        usage.flush()


def _check_end(exchange: Exchange, leg: Leg, tail: bytes) -> EndedEarly | None:
    """Return the failure of a stream that has ended without the end of its protocol."""
    answer = leg.answer
    if not (answer.framed or answer.is_event_stream) or answer.status != 200 or answer.refused:
        return None
    if exchange.path not in APIS or is_whole(exchange.path, tail):
        return None
    return EndedEarly(leg.endpoint.name, "the stream ended before its last event")


def _open_head(exchange: Exchange, answer: Answer, headers: Mapping[str, str]) -> tuple[bytes, bool]:
    """The head of an incomplete answer, and whether its body can be relayed with the engine's framing."""
    length = answer.header(b"content-length").decode("latin-1")
    raw = bool(length) or (answer.framed and exchange.chunks)
    framing = {"content-length": length} if length else {"transfer-encoding": "chunked"} if raw else {}
    if not raw:
        exchange.close_after()
    framing = {**framing, **connection_header(exchange), **headers}
    if answer.framed or answer.is_event_stream:
        framing.update(UNBUFFERED)
    return answer_head(answer.status, answer.headers, framing, own_lines(exchange)), raw


def _cut(exchange: Exchange, leg: Leg, raw: bool, broken: Break) -> None:
    """End a broken answer: with an error event if the stream ends with a whole event, else with the connection.

    The client never receives an end that looks like a proper one. An answer that is framed (`raw`) is visibly
    incomplete when its connection ends, and the client gets all that was sent; else only a reset shows the loss. After
    an error event the connection stays open: clients often repeat the request at once, and a closing connection would
    fail that. Only after lines that end in CR LF it is closed: should the error have been written into a chunk, its
    client sees an end that is too early.
    """
    last_chunk = leg.last_chunk if raw and leg.answer.framed else b""
    if last_chunk.endswith(_EVENT_END):
        _end_stream(exchange, last_chunk, broken)
    elif last_chunk.endswith(_EVENT_END_CRLF):
        exchange.close_after()
        _end_stream(exchange, last_chunk, broken)
    elif raw:
        exchange.break_off()
    else:
        exchange.abort()


def _end_stream(exchange: Exchange, last_chunk: bytes, broken: Break) -> None:
    """Write the error as the last chunk of the stream, in the shape of its API."""
    end = stream_end(exchange.path, last_chunk, broken)
    exchange.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
