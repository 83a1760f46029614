"""The fast lane: a client's connection that serves what carries the load, and gives all else to aiohttp.

It reads whole POSTs of the hot routes, in HTTP/1.1 and with a Content-Length: where such a request ends is known from
its head. A connection that sends anything else (another route or version, chunks, no body, `Expect`, a repeated header,
what is no HTTP) is aiohttp's from that request on, with every byte that has not been answered. So nothing unusual is
read here.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Final, Protocol, cast

import httptools

from pdx_proxy.http.downstream.exchange import Handler, Source, answer, body_seconds, body_too_slow, cut, peer_of
from pdx_proxy.http.routes import ROUTES, Kind
from pdx_proxy.payload.request import error_body

_HOT: Final = {
    f"POST {path} HTTP/1.1\r\n".encode(): path for path, (_, kind) in ROUTES.items() if kind is Kind.GENERATE
}
_HOT_LINES: Final = tuple(_HOT)
_LONGEST_LINE: Final = max(map(len, _HOT))
_UNUSUAL: Final = frozenset({"content-encoding", "expect", "transfer-encoding", "upgrade"})
_MAX_HEAD_BYTES: Final = 8190
"""A longer head is left to aiohttp, which refuses it in its own words or reads it."""
_MAX_AHEAD_BYTES: Final = 64 * 1024
"""How much a client may send ahead of its answers; then it is not read until one has gone out."""
_IDLE_SECONDS: Final = 75.0
"""How long a connection may wait for a request: longer than what clients and load balancers expect of a server."""
_HEAD_SECONDS: Final = 30.0
"""How long a head may take from its first byte."""
_LINGER_SECONDS: Final = 5.0
"""How long a client may go on to send an unwanted body: cut off in the middle, it might not read the answer."""

_REFUSED_POLITELY: Final = 32
"""How many connections too many are told so at a time; further ones are cut."""

_log: Final = logging.getLogger(__name__)


class Owner(Protocol):
    """What a lane asks of the server it belongs to."""

    handle: Handler
    """Answers the request of a lane; cancelled when its client leaves."""
    stopping: bool
    max_body_bytes: int

    def room(self) -> int:
        """How many further connections are taken; less than nothing where there are too many."""

    def give_away(self, lane: "Http1Connection", transport: asyncio.Transport) -> asyncio.Protocol:
        """The protocol that a connection goes on with."""

    def forget(self, lane: "Http1Connection") -> None:
        """The lane's connection is over."""


class _Head:
    """What httptools reads of a request's head."""

    __slots__ = ("headers", "usual")

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.usual = True

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if key in self.headers:
            self.usual = False
        self.headers[key] = value.decode("latin-1")


def read_head(head: bytes, max_body_bytes: int) -> tuple[dict[str, str], int, bool] | None:
    """Headers by lower-case name, length of the body, and whether the connection is kept.

    None for a head that is not the lane's.
    """
    found = _Head()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    length = found.headers.get("content-length", "")
    if not found.usual or not _UNUSUAL.isdisjoint(found.headers) or not length.isdecimal():
        return None
    if "host" not in found.headers:
        return None
    size = int(length)
    if not 0 < size <= max_body_bytes:  # with an empty body a request is over, and its parser has forgotten `close`
        return None
    return found.headers, size, parser.should_keep_alive()


class Http1Connection:
    """One client's connection, and the Exchange of the request that is served on it."""

    __slots__ = (
        "_ahead",
        "_arrival",
        "_began",
        "_body",
        "_held",
        "_lingers",
        "_loop",
        "_missing",
        "_owner",
        "_paused",
        "_source",
        "_transport",
        "begun",
        "closes",
        "headers",
        "path",
        "size",
        "task",
    )

    method: Final = "POST"
    chunks: Final = True

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._source: Source | None = None
        self._paused = False
        """Whether the client reads slower than it is written to."""
        self._held = False
        """Whether the client is not read because it has sent too much ahead."""
        self._ahead = b""
        """What has come behind the request that is served; or an unfinished head."""
        self._body: list[bytes] = []
        self._missing = 0
        """Bytes of the body that are still to come."""
        self._arrival: asyncio.Future[None] | None = None
        self._lingers = False
        """Whether the last answer has been given, and what still comes is thrown away."""
        self._began = loop.time()
        """When the connection, the head or the request began: what the lane waits for is counted from here."""
        self.path = ""
        self.size = 0
        self.headers: Mapping[str, str] = {}
        self.begun = False
        self.closes = False
        self.task: asyncio.Task[None] | None = None
        """The handler of the request that is served."""

    # what a handler does with its request

    async def body(self) -> bytes:
        """The whole body; raises RefusedError when it comes too slowly."""
        if self._missing:
            self._arrival = self._loop.create_future()
            await self._arrival
        parts, self._body = self._body, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def peer(self) -> str:
        """The client's address."""
        return peer_of(self._transport)

    def count_body(self, take: Callable[[int], None]) -> None:
        """Nothing to count: here a body's length is known."""

    def drop_body(self) -> None:
        """Answer without the body, and close when what is still to come of it has been thrown away."""
        if self._missing:
            self.closes = True

    def write(self, data: bytes) -> None:
        """Write bytes of the answer as they are."""
        if self._transport is not None:
            self.begun = True
            self._transport.write(data)

    def feed_from(self, source: Source | None) -> None:
        """Tell `source` to pause while the client reads slower than it writes."""
        self._source = source
        if source is not None and self._paused:
            source.pause()

    def close_after(self) -> None:
        """Close the connection after this answer."""
        self.closes = True

    def abort(self) -> None:
        """Cut the connection."""
        self.closes = True
        if self._transport is not None:
            cut(self._transport)

    # what its server does with it

    def stop(self) -> None:
        """Accept no further request."""
        self.closes = True
        if self.task is None and self._transport is not None:
            self._transport.close()

    def look(self, now: float) -> None:
        """Let go of a client that is too slow or has nothing to ask."""
        waited = now - self._began
        if self._lingers:
            if waited > _LINGER_SECONDS and self._transport is not None:
                self._transport.close()
        elif self._missing:
            late = waited > body_seconds(self.size - self._missing)
            if late and self._arrival is not None and not self._arrival.done():
                self.closes = True
                self._arrival.set_exception(body_too_slow())
        elif (
            self.task is None
            and self._transport is not None
            and waited > (_HEAD_SECONDS if self._ahead else _IDLE_SECONDS)
        ):
            if self._ahead:
                self.closes = True
                answer(self, 408, error_body(408, "The request's head did not arrive in time.", "Request Timeout"), {})
            self._transport.close()

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        room = self._owner.room()
        if room < 0:
            self._turn_away(self._transport, politely=room >= -_REFUSED_POLITELY)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.forget(self)
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._paused = True
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._source is not None:
            self._source.resume()

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            self._throw_away(len(data))
        elif self._missing:
            self._continue(data)
        elif self.task is not None:
            self._ahead += data
            if len(self._ahead) > _MAX_AHEAD_BYTES and self._transport is not None and not self._held:
                self._held = True
                self._transport.pause_reading()
        elif self._ahead:
            self._begin(self._ahead + data)
        else:
            self._began = self._loop.time()
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        """Begin a request whose first bytes are `data`, or keep them until its head is here."""
        self._ahead = b""
        if not data.startswith(_HOT_LINES):
            if len(data) < _LONGEST_LINE and any(line.startswith(data) for line in _HOT_LINES):
                self._ahead = data
            else:
                self._give_away(data)
            return
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 and len(data) <= _MAX_HEAD_BYTES:
            self._ahead = data
            return
        head = read_head(data[:end], self._owner.max_body_bytes) if 4 <= end <= _MAX_HEAD_BYTES else None
        if head is None:
            self._give_away(data)
            return
        self.headers, size, kept = head
        self.path = _HOT[data[: data.index(b"\n") + 1]]
        self.closes = not kept or self._owner.stopping
        self.begun = False
        self._missing = self.size = size
        self.task = self._loop.create_task(self._serve())
        self._continue(data[end:])

    def _continue(self, data: bytes) -> None:
        """Take bytes of the body; what is behind it belongs to the next request."""
        missing = self._missing
        if len(data) > missing:
            self._ahead = data[missing:]
            data = data[:missing]
        self._body.append(data)
        self._missing = missing - len(data)
        if not self._missing and self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _turn_away(self, transport: asyncio.Transport, politely: bool) -> None:
        """End a connection that is one too many."""
        if not politely:
            transport.abort()
            return
        self.closes = True
        body = error_body(503, "The service is overloaded: it has too many connections.", "ServiceUnavailableError")
        answer(self, 503, body, {"retry-after": "1"})
        self._missing = _MAX_AHEAD_BYTES
        self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        self._lingers = True
        self._began = self._loop.time()
        transport.write_eof()

    def _throw_away(self, size: int) -> None:
        self._missing -= size
        if self._missing <= 0 and self._transport is not None:
            self._transport.close()

    def _give_away(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        self._transport = None
        other = self._owner.give_away(self, transport)
        transport.set_protocol(other)
        other.connection_made(transport)
        if self._paused:
            other.pause_writing()
        other.data_received(data)

    async def _serve(self) -> None:
        try:
            await self._owner.handle(self)
        except Exception:
            _log.exception("A request failed inside the gateway.")
            self.abort()
        finally:
            self._finish()

    def _finish(self) -> None:
        """Ready for the next request, if there is to be one."""
        self.task = None
        self._arrival = None
        self._source = None
        self._body = []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._missing:
            self._linger(transport)
            return
        if self.closes:
            transport.close()
            return
        self._began = self._loop.time()
        if self._held:
            self._held = False
            transport.resume_reading()
        if self._ahead:
            self._begin(self._ahead)
