"""An engine's open answer, moved to the client as the bytes it came as."""

import asyncio
from collections.abc import Mapping
from typing import Final

from pdx_proxy.engines.leg import Leg
from pdx_proxy.http.downstream.exchange import Exchange
from pdx_proxy.http.messages import answer_head
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure, LostConnection, RequestExpired
from pdx_proxy.payload.request import error_body
from pdx_proxy.telemetry.counters import Counters

_ENDING: Final = error_body(503, "The gateway is shutting down.", "ServiceUnavailableError")
_EVENT_END: Final = b"\n\n\r\n"
"""How a chunk that holds whole events ends on the wire; a JSON event holds no bare carriage return."""


async def relay(
    exchange: Exchange, leg: Leg, headers: Mapping[str, str], idle: float, counters: Counters
) -> EngineFailure | RequestExpired | None:
    """Send the answer on, its head with `headers` added and its pieces counted; what ended it before its end, or None.

    `idle` seconds without a byte of the engine end it. The leg stays the caller's.
    """
    connection, answer = leg.connection, leg.answer
    counters.chunks += 1
    if answer.complete:
        body = answer.body
        framing = {"content-length": str(len(body)), **_closing(exchange), **headers}
        exchange.write(answer_head(answer.status, answer.headers, framing) + body)
        return None
    length = answer.header(b"content-length").decode("latin-1")
    raw = bool(length) or (answer.chunked and exchange.chunks)
    framing = {"content-length": length} if length else {"transfer-encoding": "chunked"} if raw else {}
    if not raw:
        exchange.close_after()
    head = answer_head(answer.status, answer.headers, {**framing, **_closing(exchange), **headers})
    exchange.write(head + connection.relay(exchange, counters, raw=raw))
    exchange.feed_from(connection)
    connection.watch(idle, leg.until)
    try:
        await connection.whole()
    except (LostConnection, DeadlineExceeded, RequestExpired) as failure:
        _cut(exchange, connection.last if raw and answer.chunked else b"", error_of(failure))
        return failure
    except asyncio.CancelledError:  # the client has left, which makes this void; or the gateway ends
        _cut(exchange, connection.last if raw and answer.chunked else b"", _ENDING)
        raise
    finally:
        exchange.feed_from(None)
        connection.resume()  # the next exchange on it has another client
    return None


def _closing(exchange: Exchange) -> dict[str, str]:
    return {"connection": "close"} if exchange.closes else {}


def error_of(failure: EngineFailure | RequestExpired) -> bytes:
    """What a client is told of an answer that has ended before its end."""
    if isinstance(failure, RequestExpired):
        return error_body(504, "The request took too long.", "GatewayTimeoutError")
    if isinstance(failure, DeadlineExceeded):
        return error_body(504, "The engine went silent while it answered.", "GatewayTimeoutError")
    return error_body(500, "The engine was lost while it answered.", "InternalServerError")


def _cut(exchange: Exchange, last: bytes, error: bytes) -> None:
    """End a stream before its end: with an error event if a whole event was sent last, else with a cut.

    `last` is what was written last of a chunked stream. An end that looks like one is never sent. Behind an error event
    the connection serves on: its client often asks again at once, and a closed one would fail that.
    """
    if last.endswith(_EVENT_END):
        event = b"data: " + error + b"\n\ndata: [DONE]\n\n"
        exchange.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
    else:
        exchange.abort()
