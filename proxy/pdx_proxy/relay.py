"""An engine's open answer, moved to the client as the bytes it came as."""

from collections.abc import Mapping
from typing import Final

from pdx_proxy.exchange import Exchange
from pdx_proxy.failures import LostConnection
from pdx_proxy.leg import Leg
from pdx_proxy.request import error_body
from pdx_proxy.wire import answer_head

_EVENT_END: Final = b"\n\n\r\n"
"""How a chunk that holds whole events ends on the wire; a JSON event holds no bare carriage return."""


async def relay(exchange: Exchange, leg: Leg, headers: Mapping[str, str]) -> bool:
    """Send the answer on, its head with `headers` added; False when the engine was lost before its end.

    The leg stays the caller's.
    """
    connection, answer = leg.connection, leg.answer
    if answer.complete:
        body = answer.body
        framing = {"content-length": str(len(body)), **_closing(exchange), **headers}
        exchange.write(answer_head(answer.status, answer.headers, framing) + body)
        return True
    length = answer.header(b"content-length").decode("latin-1")
    raw = bool(length) or (answer.chunked and exchange.chunks)
    framing = {"content-length": length} if length else {"transfer-encoding": "chunked"} if raw else {}
    if not raw:
        exchange.close_after()
    head = answer_head(answer.status, answer.headers, {**framing, **_closing(exchange), **headers})
    exchange.write(head + connection.relay(exchange, raw=raw))
    exchange.feed_from(connection)
    try:
        await connection.whole()
    except LostConnection:
        _cut(exchange, connection.last if raw and answer.chunked else b"")
        return False
    finally:
        exchange.feed_from(None)
        connection.resume()  # the next exchange on it has another client
    return True


def _closing(exchange: Exchange) -> dict[str, str]:
    return {"connection": "close"} if exchange.closes else {}


def _cut(exchange: Exchange, last: bytes) -> None:
    """End a stream whose engine is gone: with an error event if a whole event was sent last, else with a cut.

    `last` is what was written last of a chunked stream. An end that looks like one is never sent.
    """
    if last.endswith(_EVENT_END):
        error = error_body(500, "The engine was lost while it answered.", "InternalServerError")
        event = b"data: " + error + b"\n\ndata: [DONE]\n\n"
        exchange.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        exchange.close_after()
    else:
        exchange.abort()
