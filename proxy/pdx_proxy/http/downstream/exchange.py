"""One request of a client and its answer, as a handler sees them, whichever server reads the connection."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from pdx_proxy.http.messages import answer_head, http_date


class Pausable(Protocol):
    """The upstream side of a relay, which flow control pauses and resumes."""

    def pause(self) -> None:
        """Stop sending."""

    def resume(self) -> None:
        """Send again."""


class Exchange(Protocol):
    """One request of a client and the place for its answer.

    The handler is cancelled when the client disconnects. It writes one whole answer, or calls `abort` or `break_off`.
    """

    @property
    def method(self) -> str:
        """GET, POST, …"""

    @property
    def cors(self) -> bytes:
        """Header lines for a browser's page of another origin, which every answer gets; mostly empty."""

    @property
    def path(self) -> str:
        """Path without the query, with its percent-encoding decoded."""

    @property
    def query(self) -> str:
        """The query as it was sent, with its question mark; empty without one."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's headers, by names in lower case."""

    @property
    def chunks(self) -> bool:
        """Whether the client understands chunked answers (HTTP/1.1)."""

    @property
    def begun(self) -> bool:
        """Whether bytes of an answer have been written."""

    @property
    def closes(self) -> bool:
        """Whether the connection is closed after this answer."""

    @property
    def size(self) -> int | None:
        """Length of the body; None when the head does not contain it."""

    @property
    def peer(self) -> str:
        """The client's address, without its port."""

    def count_body(self, count: Callable[[int], None]) -> None:
        """Call `count` with the size of each part of the body, at once for what has come.

        If it raises RefusedError, `body` raises that error.
        """

    def drop_body(self) -> None:
        """Answer without the body: the rest of it is discarded, and then the connection is closed."""

    async def body(self) -> bytes | bytearray:
        """The whole body, which does not change any more.

        Raises RefusedError when it is too large, too slow or refused by `count_body`.
        """

    def write(self, data: bytes) -> None:
        """Write bytes of the answer as they are."""

    def bind_upstream(self, upstream: Pausable | None) -> None:
        """Pause `upstream` while the client reads slower than the gateway writes."""

    def allow_origin(self, lines: bytes) -> None:
        """Give every answer these CORS header lines."""

    def close_after(self) -> None:
        """Close the connection after this answer."""

    def abort(self) -> None:
        """Cut the connection, so that the client cannot take half an answer for a whole one."""

    def break_off(self) -> None:
        """Close the connection behind what has been written: the framing shows that the answer is incomplete."""


Handler = Callable[[Exchange], Awaitable[None]]


class DateLine:
    """The Date header with its line end, kept for the second that it names."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = -1.0
        self._line = b""

    def at(self, now: float) -> bytes:
        """The header of an answer that begins at this Unix time."""
        if not 0.0 <= now - self._second < 1.0:
            second = int(now)
            self._second = float(second)
            self._line = f"date: {http_date(second)}\r\n".encode()
        return self._line


_DATE_LINE: Final = DateLine()
_UNIX_TIME: Final = time.time


def date_line() -> bytes:
    """The Date header of an answer that begins now, with its line end."""
    return _DATE_LINE.at(_UNIX_TIME())


_MAX_CLIENT_ID: Final = 256
_CLOSE: Final[Mapping[str, str]] = {"connection": "close"}
_KEEP_ALIVE: Final[Mapping[str, str]] = {"connection": "keep-alive"}
_NONE: Final[Mapping[str, str]] = {}


def connection_header(exchange: Exchange) -> Mapping[str, str]:
    """The Connection header of an answer. A client of HTTP/1.0 reads to the end of a connection unless it has one."""
    if exchange.closes:
        return _CLOSE
    return _NONE if exchange.chunks else _KEEP_ALIVE


def own_headers(exchange: Exchange) -> dict[str, str]:
    """The headers that every answer has: the client's request ID, unchanged but for its length."""
    client_id = exchange.headers.get("x-request-id", "")
    return {"x-request-id": client_id[:_MAX_CLIENT_ID]} if client_id and client_id.isascii() else {}


def own_lines(exchange: Exchange) -> bytes:
    """The header lines that every answer gets: its Date, and what browsers need."""
    date = date_line()
    return exchange.cors + date if exchange.cors else date


def answer(
    exchange: Exchange, status: int, body: bytes, headers: Mapping[str, str], content_type: str = "application/json"
) -> None:
    """Write a whole answer that the gateway itself gives. Without a body, it has no content type."""
    length = {"content-type": content_type} if body else {}
    length["content-length"] = str(len(body))
    framing = {**length, **headers, **connection_header(exchange)}
    exchange.write(answer_head(status, (), framing, own_lines(exchange)) + body)
