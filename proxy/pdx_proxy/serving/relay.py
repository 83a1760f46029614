"""Relays an engine's open answer to the client, byte for byte."""

import asyncio
from collections.abc import Mapping
from typing import Final

from pdx_proxy.engines.leg import Leg
from pdx_proxy.http.downstream.exchange import Exchange, date_line
from pdx_proxy.http.messages import answer_head
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure, LostConnection, RequestExpired
from pdx_proxy.serving.stream_end import Break, break_of, stream_end
from pdx_proxy.telemetry.counters import Counters

_SHUTTING_DOWN: Final = Break(503, "The gateway is shutting down.", "ServiceUnavailableError")
_EVENT_END: Final = b"\n\n\r\n"
"""The end of a chunk that holds whole events. A JSON event contains no bare carriage return."""
_EVENT_END_CRLF: Final = b"\r\n\r\n\r\n"
"""The same for an engine whose lines end in CR LF. Two empty lines within a chunk look alike."""


async def relay(
    exchange: Exchange, leg: Leg, headers: Mapping[str, str], idle: float, counters: Counters
) -> EngineFailure | RequestExpired | None:
    """Relay the answer, with `headers` added to its head. Return the failure that broke it, or None.

    The answer breaks when the engine sends nothing for `idle` seconds. The caller still owns the leg.
    """
    answer = leg.answer
    counters.chunks += 1
    if answer.complete:
        body = answer.body
        framing = {"content-length": str(len(body)), **_closing(exchange), **headers}
        exchange.write(answer_head(answer.status, answer.headers, framing, date_line()) + body)
        return None
    head, raw = _open_head(exchange, answer, headers)
    exchange.write(head + leg.relay(exchange, raw=raw))
    exchange.bind_upstream(leg)
    counters.relays.add(leg)
    try:
        await leg.relayed(idle)
    except (LostConnection, DeadlineExceeded, RequestExpired) as failure:
        _cut(exchange, leg.last_chunk if raw and answer.framed else b"", break_of(failure))
        return failure
    except asyncio.CancelledError:  # the client has left, and no write reaches it; or the gateway shuts down
        _cut(exchange, leg.last_chunk if raw and answer.framed else b"", _SHUTTING_DOWN)
        raise
    finally:
        counters.relays.discard(leg)
        counters.chunks += leg.relayed_chunks
        exchange.bind_upstream(None)
        leg.resume()  # the next exchange on its connection has another client
    return None


def _open_head(exchange: Exchange, answer: Answer, headers: Mapping[str, str]) -> tuple[bytes, bool]:
    """The head of an incomplete answer, and whether its body can be relayed with the engine's framing."""
    length = answer.header(b"content-length").decode("latin-1")
    raw = bool(length) or (answer.framed and exchange.chunks)
    framing = {"content-length": length} if length else {"transfer-encoding": "chunked"} if raw else {}
    if not raw:
        exchange.close_after()
    framing = {**framing, **_closing(exchange), **headers}
    return answer_head(answer.status, answer.headers, framing, date_line()), raw


def _closing(exchange: Exchange) -> dict[str, str]:
    return {"connection": "close"} if exchange.closes else {}


def _cut(exchange: Exchange, last_chunk: bytes, broken: Break) -> None:
    """End a broken answer: with an error event if the stream ends with a whole event, else by cutting the connection.

    `last_chunk` is the piece of a chunked stream that was written last. The client never receives an end that looks
    like a proper one. After an error event the connection stays open: clients often repeat the request at once, and a
    closing connection would fail that. Only after lines that end in CR LF it is closed: should the error have been
    written into a chunk, its client sees an end that is too early.
    """
    if last_chunk.endswith(_EVENT_END):
        _end_stream(exchange, last_chunk, broken)
    elif last_chunk.endswith(_EVENT_END_CRLF):
        exchange.close_after()
        _end_stream(exchange, last_chunk, broken)
    else:
        exchange.abort()


def _end_stream(exchange: Exchange, last_chunk: bytes, broken: Break) -> None:
    """Write the error as the last chunk of the stream, in the shape of its API."""
    end = stream_end(exchange.path, last_chunk, broken)
    exchange.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
