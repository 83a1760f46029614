"""The fast path: reads a client's connection, and serves the most common kinds of requests.

It reads POST requests of the hot routes in HTTP/1.1 with a Content-Length, so the head contains where a request ends.
When a client sends anything else (another route or version, chunks, no body, `Expect`, a repeated header, bytes that
are not HTTP), aiohttp takes over the connection with every byte that has not been answered, until a later request is
one for this module. Therefore it never parses unusual requests.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, Protocol, cast

from pdx_proxy.http.downstream.exchange import Handler, Pausable, answer
from pdx_proxy.http.downstream.head import MAX_HEAD_BYTES, may_be_hot, read_head
from pdx_proxy.http.downstream.transport import SendProgress, body_seconds, hand_over, peer_of, sweep_client
from pdx_proxy.http.errors import RefusedError, body_too_slow, error_body, unavailable_body
from pdx_proxy.http.tcp import cut, detect_lost_peer, has_unread_bytes

_MAX_AHEAD_BYTES: Final = 64 * 1024
"""How much a client may send ahead of its answers. Beyond that, reading is paused until an answer is complete."""
_LARGE_BODY_BYTES: Final = 256 * 1024
"""A larger body is received into one buffer: joined at its end, its parts would take twice the memory."""
_IDLE_SECONDS: Final = 75.0
"""How long a connection may be idle: longer than clients and load balancers expect of a server."""
_HEAD_SECONDS: Final = 30.0
"""How long a head may take, from its first byte."""
_LINGER_SECONDS: Final = 5.0
"""How long a client may go on sending a body that is discarded: if it were cut off, it might not read the answer."""

_NO_HEADERS: Final[Mapping[str, str]] = {}
_REFUSALS: Final = 32
"""How many connections beyond the limit receive a 503 at a time; further ones are cut."""

_log: Final = logging.getLogger(__name__)


class Owner(Protocol):
    """The listener, as its connections use it."""

    handle: Handler
    """Answers a request; cancelled when the client disconnects."""
    stopping: bool
    max_body_bytes: int
    send_seconds: float
    """How long a client may accept no byte while bytes wait for it."""

    def room(self) -> int:
        """How many more connections are accepted; negative when there are too many."""

    def fall_back(self, connection: "Http1Connection") -> asyncio.Protocol:
        """Return aiohttp's protocol, which takes over the connection."""

    def forget(self, connection: "Http1Connection") -> None:
        """The connection is closed."""


class Http1Connection:
    """One client's connection, and the Exchange of the request that is served on it."""

    __slots__ = (
        "_ahead",
        "_body",
        "_body_complete",
        "_count",
        "_drained",
        "_large_body",
        "_lingers",
        "_loop",
        "_missing",
        "_owner",
        "_peer",
        "_progress",
        "_read_paused",
        "_refused",
        "_since",
        "_upstream",
        "_write_paused",
        "begun",
        "closes",
        "cors",
        "headers",
        "path",
        "size",
        "task",
        "transport",
    )

    method: Final = "POST"
    query: Final = ""
    chunks: Final = True

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self.transport: asyncio.Transport | None = None
        self._upstream: Pausable | None = None
        self._write_paused = False
        """Whether the client reads slower than the gateway writes."""
        self._read_paused = False
        """Whether reading is paused because the client has sent too much ahead."""
        self._ahead = b""
        """Bytes behind the request that is served; or an unfinished head."""
        self._body: list[bytes] = []
        self._large_body: bytearray | None = None
        self._missing = 0
        """Bytes of the body that have not arrived."""
        self._body_complete: asyncio.Future[None] | None = None
        self._count: Callable[[int], None] | None = None
        """Receives the size of each part of the body."""
        self._refused: RefusedError | None = None
        """Why the rest of the body is not accepted."""
        self._peer = ""
        """Its client's address, once that has been needed."""
        self._progress = SendProgress()
        self._drained = False
        """Whether the client has accepted every byte and no request is open: nothing to inspect."""
        self._lingers = False
        """Whether the last answer has been written, and further bytes are discarded."""
        self._since = loop.time()
        """Since when the connection waits for a request, a head or a body."""
        self.path = ""
        self.size = 0
        self.headers: Mapping[str, str] = _NO_HEADERS
        """The headers of the request that is served: they may hold the client's key."""
        self.cors = b""
        self.begun = False
        self.closes = False
        self.task: asyncio.Task[None] | None = None
        """The handler of the request that is served."""

    # the exchange, as the handler sees it

    async def body(self) -> bytes | bytearray:
        """The whole body; raises RefusedError when it is too slow, or when its parts are refused as they arrive."""
        if self._refused is not None:
            raise self._refused
        if self._missing:
            self._body_complete = self._loop.create_future()
            await self._body_complete
        if self._large_body is not None:
            large, self._large_body = self._large_body, None
            return large
        parts, self._body = self._body, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def peer(self) -> str:
        """The client's address."""
        if not self._peer:
            self._peer = peer_of(self.transport)
        return self._peer

    def count_body(self, count: Callable[[int], None]) -> None:
        """Call `count` with the size of each part of the body: of what has arrived now, of the rest as it arrives."""
        self._count = count
        if self.size > self._missing:
            self._count_arrived(self.size - self._missing)

    def drop_body(self) -> None:
        """Answer without the body, discard the rest of it, and close the connection."""
        if self._missing:
            self.closes = True

    def write(self, data: bytes) -> None:
        """Write bytes of the answer as they are."""
        if self.transport is not None:
            self.begun = True
            self.transport.write(data)

    def bind_upstream(self, upstream: Pausable | None) -> None:
        """Pause `upstream` while the client reads slower than the gateway writes."""
        self._upstream = upstream
        if upstream is not None and self._write_paused:
            upstream.pause()

    def allow_origin(self, lines: bytes) -> None:
        """Give every answer these CORS header lines."""
        self.cors = lines

    def close_after(self) -> None:
        """Close the connection after this answer."""
        self.closes = True

    def abort(self) -> None:
        """Cut the connection."""
        self.closes = True
        if self.transport is not None:
            cut(self.transport)

    def break_off(self) -> None:
        """Close the connection behind what has been written."""
        self.closes = True
        if self.transport is not None:
            self.transport.close()

    # the connection, as the listener sees it

    def is_expectant(self, since: float) -> bool:
        """Whether a request may be on its way: bytes of it have arrived, or the connection was made after `since`."""
        transport = self.transport
        if transport is None:  # it has been accepted, but not made
            return True
        if transport.is_closing() or self._lingers or self.task is not None:
            return False
        if self._ahead or (not self.path and self._since >= since):
            return True
        return has_unread_bytes(transport.get_extra_info("socket"))

    def has_no_handshake(self, since: float) -> bool:
        """Whether the connection was accepted before `since` and its TLS handshake is not complete."""
        return self.transport is None and self.task is None and self._since < since

    def stop(self, since: float) -> None:
        """Accept no further request, except one that may be on its way (see `is_expectant`)."""
        self.closes = True
        transport = self.transport
        if transport is None or self._lingers or self.task is not None:
            return
        if not self.is_expectant(since):
            transport.close()
        elif since == inf:
            answer(self, 503, unavailable_body("The service is shutting down."), {"retry-after": "1"})
            self._missing = _MAX_AHEAD_BYTES
            self._linger(transport)

    def sweep(self, now: float) -> None:
        """Close the connection of a client that is too slow or idle, or accepts no byte of what waits for it."""
        transport = self.transport
        if transport is None:
            return
        if not self._drained:
            waits = sweep_client(transport, self._progress, now, self._owner.send_seconds)
            self._drained = not waits and self.task is None
        waited = now - self._since
        if self._lingers:
            if waited > _LINGER_SECONDS:
                transport.close()
        elif self._missing:
            late = waited > body_seconds(self.size - self._missing)
            if late and self._body_complete is not None and not self._body_complete.done():
                self.closes = True
                self._body_complete.set_exception(body_too_slow())
        elif self.task is None and waited > (_HEAD_SECONDS if self._ahead else _IDLE_SECONDS):
            if self._ahead:
                self.closes = True
                answer(self, 408, error_body(408, "The request's head did not arrive in time.", "Request Timeout"), {})
                self._drained = False
            transport.close()

    # the asyncio protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        detect_lost_peer(transport.get_extra_info("socket"), self._owner.send_seconds)
        room = self._owner.room()
        if room < 0:
            self._refuse(self.transport, with_answer=room >= -_REFUSALS)

    def resume(self, transport: asyncio.Transport, data: bytes, write_paused: bool) -> None:
        """Take over a connection from the fallback, with the first bytes of a request."""
        self.transport = transport
        self._write_paused = write_paused
        transport.set_protocol(cast("asyncio.Protocol", self))
        self.data_received(data)

    def discard(self, transport: asyncio.Transport, write_paused: bool, floods: bool) -> None:
        """Take over a connection from the fallback, whose last answer is written."""
        self.transport = transport
        self._write_paused = write_paused
        self.closes = True
        self._missing = _MAX_AHEAD_BYTES if floods else self._owner.max_body_bytes
        transport.set_protocol(cast("asyncio.Protocol", self))
        transport.resume_reading()
        self._linger(transport)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._owner.forget(self)
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._upstream is not None:
            self._upstream.pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._upstream is not None:
            self._upstream.resume()

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            self._discard(len(data))
        elif self._missing:
            self._continue(data)
        elif self.task is not None:
            self._ahead += data
            self._count_ahead(len(data))
            if len(self._ahead) > _MAX_AHEAD_BYTES and self.transport is not None and not self._read_paused:
                self._read_paused = True
                self.transport.pause_reading()
        elif self._ahead:
            self._begin(self._ahead + data)
        else:
            self._since = self._loop.time()
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        """Begin a request whose first bytes are `data`, or buffer them until its head is complete."""
        self._ahead = b""
        if not may_be_hot(data):
            self._fall_back(data)
            return
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 and len(data) <= MAX_HEAD_BYTES:
            self._ahead = data
            return
        head = read_head(data[:end], self._owner.max_body_bytes) if 4 <= end <= MAX_HEAD_BYTES else None
        if head is None:
            self._fall_back(data)
            return
        self.path, self.headers, size, kept = head
        self.closes = not kept or self._owner.stopping
        self.begun = self._drained = False
        self._missing = self.size = size
        if size > _LARGE_BODY_BYTES:
            self._large_body = bytearray()
        self.task = asyncio.Task(self._serve(), loop=self._loop, name="request")  # costs half of `create_task`
        self._continue(data[end:])

    def _continue(self, data: bytes) -> None:
        """Receive bytes of the body. Bytes behind it belong to the next request."""
        missing = self._missing
        if len(data) > missing:
            self._ahead = data[missing:]
            data = data[:missing]
        self._missing = missing - len(data)
        if self._count is not None:
            self._count_arrived(len(data))
        if self._refused is not None:
            return
        if self._large_body is not None:
            self._large_body += data
        else:
            self._body.append(data)
        if not self._missing and self._body_complete is not None and not self._body_complete.done():
            self._body_complete.set_result(None)

    def _count_arrived(self, size: int) -> None:
        """Count bytes of the body that have arrived. When they are refused, the handler's wait for the body ends."""
        assert self._count is not None
        try:
            self._count(size)
        except RefusedError as refusal:
            self._count = None
            self._refused = refusal
            self._body, self._large_body = [], None
            if self._body_complete is not None and not self._body_complete.done():
                self._body_complete.set_exception(refusal)

    def _count_ahead(self, size: int) -> None:
        """Count bytes behind the request that is served. If they are refused, the connection ends with its answer."""
        if self._count is None:
            return
        try:
            self._count(size)
        except RefusedError:
            self._ahead, self.closes, self._count = b"", True, None
            if self.transport is not None and not self._read_paused:
                self._read_paused = True
                self.transport.pause_reading()

    def _refuse(self, transport: asyncio.Transport, with_answer: bool) -> None:
        """Close a connection beyond the limit, with a 503 or without an answer."""
        if not with_answer:
            transport.abort()
            return
        self.closes = True
        body = unavailable_body("The service is overloaded: it has too many connections.")
        answer(self, 503, body, {"retry-after": "1"})
        self._missing = _MAX_AHEAD_BYTES
        self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        self._lingers = True
        self._since = self._loop.time()
        if transport.can_write_eof():  # TLS cannot close one direction
            transport.write_eof()

    def _discard(self, size: int) -> None:
        self._missing -= size
        if self._missing <= 0 and self.transport is not None:
            self.transport.close()

    def _fall_back(self, data: bytes) -> None:
        transport = self.transport
        assert transport is not None
        self.transport = None
        hand_over(transport, self._owner.fall_back(self), data, self._write_paused)

    async def _serve(self) -> None:
        try:
            await self._owner.handle(self)
        except Exception:
            _log.exception("A request failed inside the gateway.")
            self.abort()
        finally:
            self._finish()

    def _finish(self) -> None:
        """Close the connection, or begin the next request on it."""
        self.task = None
        self.headers = _NO_HEADERS
        self._body_complete = None
        self._count = None
        self._refused = None
        self._upstream = None
        self._body, self._large_body = [], None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._missing:
            self._linger(transport)
            return
        if self.closes:
            transport.close()
            return
        self._since = self._loop.time()
        if self._read_paused:
            self._read_paused = False
            transport.resume_reading()
        if self._ahead:
            self._begin(self._ahead)
