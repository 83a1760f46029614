"""Comments in a stream before its first event, so that proxies between client and gateway keep the connection open.

The first comment commits the answer to status 200 and `text/event-stream`. Attempts go on as before: no byte of an
engine has been sent. Whatever the answer then is, an error included, follows as events.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from pdx_proxy.http.downstream.exchange import Exchange, Pausable, answer, connection_header, own_headers, own_lines
from pdx_proxy.http.errors import unavailable_body
from pdx_proxy.http.messages import answer_head
from pdx_proxy.payload.apis import APIS
from pdx_proxy.serving.relay import SHUTTING_DOWN, UNBUFFERED
from pdx_proxy.serving.stream_end import error_events

STREAMED: Final = frozenset(APIS)
"""The paths whose answers can be streams of server-sent events."""
_COMMENT: Final = b": keep-alive\n\n"
_TYPE: Final = "text/event-stream; charset=utf-8"


class StreamKeepAlive:
    """An Exchange whose client gets comments until its answer begins. It sends none before `start`."""

    __slots__ = ("_answered", "_committed", "_exchange", "_seconds", "_timer")

    def __init__(self, exchange: Exchange, seconds: float) -> None:
        self._exchange = exchange
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._committed = False
        """Whether a comment has been sent, and with it the head of the answer."""
        self._answered = False
        """Whether the answer itself has begun."""

    def start(self) -> None:
        """Send a comment each time that its seconds have passed without a byte."""
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._comment)

    def stop(self) -> None:
        """Send no further comment; called any number of times."""
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """The request has ended. A committed stream without an answer was cancelled: its client, if any, gets an error.

        To a client of HTTP/1.0 the end of the connection alone would be the end of a whole answer.
        """
        self.stop()
        if self._committed and not self._answered:
            answer(self, 503, unavailable_body(SHUTTING_DOWN, self.path), {})

    def write(self, data: bytes) -> None:
        """Write bytes of the answer. The first ones have its whole head."""
        self.stop()
        first, self._answered = not self._answered, True
        if not (first and self._committed):
            self._exchange.write(data)
            return
        events = as_stream(self.path, data, chunked=self.chunks)
        if events is None:
            self.abort()
        else:
            self._exchange.write(events)

    def _comment(self) -> None:
        exchange = self._exchange
        if not self._committed:
            self._committed = True
            framing = {"transfer-encoding": "chunked"} if exchange.chunks else {}
            if not framing:
                exchange.close_after()  # only the end of the connection ends such an answer
            framing |= {"content-type": _TYPE, **UNBUFFERED, **own_headers(exchange), **connection_header(exchange)}
            exchange.write(answer_head(200, (), framing, own_lines(exchange)))
        exchange.write(_chunk(_COMMENT) if exchange.chunks else _COMMENT)
        self.start()

    # the rest of the exchange

    @property
    def begun(self) -> bool:
        """Whether bytes of the answer itself have been written."""
        return self._answered and self._exchange.begun

    @property
    def cors(self) -> bytes:
        """See Exchange."""
        return self._exchange.cors

    @property
    def method(self) -> str:
        """See Exchange."""
        return self._exchange.method

    @property
    def path(self) -> str:
        """See Exchange."""
        return self._exchange.path

    @property
    def query(self) -> str:
        """See Exchange."""
        return self._exchange.query

    @property
    def headers(self) -> Mapping[str, str]:
        """See Exchange."""
        return self._exchange.headers

    @property
    def chunks(self) -> bool:
        """See Exchange."""
        return self._exchange.chunks

    @property
    def closes(self) -> bool:
        """See Exchange."""
        return self._exchange.closes

    @property
    def size(self) -> int | None:
        """See Exchange."""
        return self._exchange.size

    @property
    def peer(self) -> str:
        """See Exchange."""
        return self._exchange.peer

    def count_body(self, count: Callable[[int], None]) -> None:
        """See Exchange."""
        self._exchange.count_body(count)

    def drop_body(self) -> None:
        """See Exchange."""
        self._exchange.drop_body()

    async def body(self) -> bytes | bytearray:
        """See Exchange."""
        return await self._exchange.body()

    def bind_upstream(self, upstream: Pausable | None) -> None:
        """See Exchange."""
        self._exchange.bind_upstream(upstream)

    def allow_origin(self, lines: bytes) -> None:
        """See Exchange."""
        self._exchange.allow_origin(lines)

    def close_after(self) -> None:
        """See Exchange."""
        self._exchange.close_after()

    def abort(self) -> None:
        """See Exchange."""
        self.stop()
        self._answered = True
        self._exchange.abort()

    def break_off(self) -> None:
        """See Exchange."""
        self.stop()
        self._answered = True
        self._exchange.break_off()


def as_stream(path: str, data: bytes, *, chunked: bool) -> bytes | None:
    """Return the bytes that continue a committed stream, for an answer that begins with `data`; None: it cannot.

    `data` is a whole head, and the whole body or the begin of a stream.
    """
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    status = int(lines[0].split()[1])
    fields = dict(line.split(b": ", 1) for line in lines[1:])
    whole = fields.get(b"content-length") == b"%d" % len(body)
    if status == 200 and fields.get(b"content-type", b"").startswith(b"text/event-stream"):
        if not whole:  # it goes on as it begins
            return body if (b"transfer-encoding" in fields) is chunked and b"content-length" not in fields else None
    elif whole:
        body = error_events(path, status, body) if status != 200 else _one_event(body)
    else:
        return None
    if not chunked:
        return body
    return (_chunk(body) if body else b"") + b"0\r\n\r\n"  # an empty chunk would end the answer


def _one_event(body: bytes) -> bytes:
    """A whole answer as a stream of one event, as vLLM sends it where it cannot stream (completion/serving.py)."""
    return b"data: " + body.replace(b"\n", b" ") + b"\n\ndata: [DONE]\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
