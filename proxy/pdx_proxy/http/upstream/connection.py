"""One keep-alive connection to an engine, and the answer that it receives.

httptools parses every byte and so finds the exact end of an answer. Of a chunked event stream the bytes are also kept
as received until it is relayed, so that the gateway does not frame it again.
"""

import asyncio
import re
from collections.abc import Callable
from math import inf
from typing import Final, Protocol, cast

import httptools

from pdx_proxy.config.settings import Address
from pdx_proxy.http.messages import BodyParts
from pdx_proxy.http.tcp import cut, detect_lost_peer
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.deadline import DeadlineTimer
from pdx_proxy.http.upstream.failures import (
    ClosedConnection,
    DeadlineExceeded,
    LostConnection,
    RequestExpired,
    is_local,
)

_JOINED_BYTES: Final = 16 * 1024
"""Up to this size, head and body are joined and sent in one write. A larger body is not copied."""

_MAX_HEAD_BYTES: Final = 64 * 1024
"""The largest head of an answer, and trailers. Also the most bytes in a row that are no body, such as the extension of
a chunk (RFC 9112, 7.1.1). An engine that sends more has failed."""
_FRAMED_BYTES: Final = 8
"""The most bytes of a stream that is kept as received, for one byte of its body. A chunk of one byte has six."""
_SLICE_BYTES: Final = 16 * 1024
"""How many bytes are parsed before the number of chunks is checked. A read may have 256 KiB."""
_LEAST_PIECE: Final = 22
"""The fewest bytes of a chunk with its framing, on average of those that are parsed together. An event of vLLM has 50
or more, and a chunk of one byte costs as much work as an event."""
_AHEAD_BYTES: Final = 1024 * 1024
"""Of an answer that nobody has looked at, so much is received. The loop reads up to 8 MiB without a pause."""
_FEW_PIECES: Final = 8
_MOST_SMALL_PIECES: Final = 1024
"""The most chunks of an answer that are smaller on average."""
_SHORT_PIECE: Final = 128
"""Longer than the last event of a stream and its framing."""
_FINAL: Final = 200
"""The least status of an answer that is not interim."""
_SWITCHES: Final = 101
_CLOSES_BEHIND: Final = 500
_EVENT_END: Final = re.compile(rb"\n\r?\n")
_LOST_SECONDS: Final = 30.0
"""After this long without a sign of life the kernel ends a connection: a lost node sends no FIN."""

_IDLE_SECONDS: Final = 4.0
"""vLLM closes a connection that is idle for 5 s. If it closes one earlier than this, it is restarting or dying."""


class Sink(Protocol):
    """The receiver of a relayed answer."""

    def write(self, data: bytes) -> None:
        """Write bytes; never blocks."""


_NO_ANSWER: Final = Answer()
"""Placeholder while the connection is idle. It counts as complete, so any byte received then is a protocol error."""
_NO_ANSWER.complete = _NO_ANSWER.keep_alive = True


class Connection:
    """A connection to one engine: one exchange at a time. Its owner closes it or gives it back to the pool.

    It has the methods of an asyncio protocol but not the base class: mypyc compiles only classes without one.
    """

    __slots__ = (
        "_ahead",
        "_bodiless",
        "_closed",
        "_deadline",
        "_half_closed",
        "_interim",
        "_interruption",
        "_kept_bytes",
        "_loop",
        "_parser",
        "_pieces",
        "_relay",
        "_sent",
        "_sink",
        "_small_pieces",
        "_trailer_bytes",
        "_waiter",
        "address",
        "answer",
        "chunks",
        "endpoint",
        "idle_since",
        "last_chunk",
        "lost",
        "on_closed",
        "on_lost",
        "paused",
        "transport",
        "used",
    )

    def __init__(self, endpoint: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._relay = False
        """Whether received bytes go to the sink as they are."""
        self._sent = 0.0
        """When the request was sent, in the loop's time."""
        self._half_closed = False
        self._kept_bytes = 0
        """Bytes of a framed answer as received, until it is relayed."""
        self._ahead = 0
        """Bytes since somebody has looked at the answer."""
        self._bodiless = 0
        """Bytes since the last ones of body."""
        self._pieces = 0
        """Pieces of the body in the bytes that are parsed now."""
        self._small_pieces = 0
        """Pieces of the body that were very small on average."""
        self._trailer_bytes = 0
        self._interim = False
        """Whether the head of an interim answer has been parsed."""
        self._interruption: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = DeadlineTimer(loop, self)
        self.endpoint = endpoint
        self.address = Address("", 0)
        """The engine's address; set by the pool."""
        self.answer = Answer()
        self.transport: asyncio.Transport | None = None
        self.paused = False
        """Whether reading is paused: the client is slow, or nobody has looked at what has arrived (`_AHEAD_BYTES`)."""
        self.lost: Exception | None = None
        """Why the connection cannot be used any more."""
        self._closed = False
        """Whether the other end has closed it, and sent nothing wrong before."""
        self.on_lost: set[Callable[[], None]] = set()
        """Called once if the engine closes the connection before an idle one would be closed: it is dying or dead."""
        self.used = False
        """Whether an exchange has been completed on it."""
        self.idle_since = 0.0
        self.on_closed: Callable[[Connection], None] | None = None
        """Called once when the connection is closed."""
        self.chunks = 0
        """Pieces of the present answer that the sink received."""
        self.last_chunk = b""
        """The piece relayed last, with what came before if it is short: it shows how a stream ends."""

    def send(self, head: bytes, body: bytes | BodyParts) -> None:
        """Begin an exchange: send a request."""
        clean = self.answer.complete and self.answer.keep_alive
        self.answer = Answer()  # before anything can fail: the previous answer belongs to another client
        self._sent = self._loop.time()
        if self.transport is None or self.lost is not None:
            raise self._failure()
        self._relay = False
        self._sink = None
        self._interruption = None
        self._kept_bytes = self._bodiless = self._trailer_bytes = self._small_pieces = self._ahead = 0
        self._deadline.clear()
        if self._parser is None or not clean:  # a parser is reused after a complete answer
            self._parser = httptools.HttpResponseParser(self)
            self._parser.set_dangerous_leniencies(lenient_keep_alive=True)  # an interim answer does not close it
        if isinstance(body, BodyParts):
            self.transport.writelines((head, *body.parts))
        elif len(body) <= _JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def set_timeout(self, seconds: float, deadline: float = inf) -> None:
        """Let waits end `seconds` from now with DeadlineExceeded; `inf` sets no limit.

        At `deadline`, in the loop's time, they end with RequestExpired.
        """
        self._deadline.set_timeout(seconds, deadline)

    def watch_idle(self, idle: float, deadline: float) -> None:
        """Let the wait for a relayed answer end when no part of it arrives for `idle` seconds, or at `deadline`.

        An engine whose connection is paused for a slow client is not idle.
        """
        self._deadline.watch_idle(idle, deadline)

    @property
    def since_sent(self) -> float:
        """Seconds since the request was sent."""
        return self._loop.time() - self._sent

    @property
    def remaining(self) -> float:
        """Seconds until the present wait expires."""
        return self._deadline.remaining

    @property
    def received(self) -> int:
        """Bytes of the answer's body so far."""
        return self.answer.size

    @property
    def relaying(self) -> bool:
        """Whether the answer goes to a client."""
        return self._sink is not None

    @property
    def complete(self) -> bool:
        """Whether the answer is complete."""
        return self.answer.complete

    def progress(self) -> "asyncio.Future[None]":
        """A future for the next part of the answer; raises when no more can arrive."""
        self.check()
        self._catch_up()
        self._waiter = self._loop.create_future()
        return self._waiter

    def _catch_up(self) -> None:
        """Read on: what has arrived is looked at."""
        if self._ahead > _AHEAD_BYTES:
            self.resume()
        self._ahead = 0

    def check(self) -> None:
        """Raise the failure of an answer that is not complete."""
        if (
            self.lost is not None or self._interruption is not None or self._deadline.expired
        ) and not self.answer.complete:
            raise self._failure()

    async def head(self) -> Answer:
        """The answer once its head has arrived."""
        while not self.answer.status:
            await self.progress()
        self.check()
        return self.answer

    async def whole(self) -> Answer:
        """The answer once it is complete, or longer than `_AHEAD_BYTES`: the beginning of a health page is enough."""
        while not self.answer.complete and self.answer.size <= _AHEAD_BYTES:
            await self.progress()
        return self.answer

    def relay(self, sink: Sink, *, raw: bool) -> bytes:
        """Send the rest of the body to `sink`: as received, or without its framing if `raw` is false.

        Return the part of the body that has arrived. The caller writes it together with a head.
        """
        self._catch_up()
        self._relay = raw
        self._sink = sink
        self.chunks = 0
        answer = self.answer
        received = b"".join(answer.raw).split(b"\r\n\r\n", answer.heads)[-1] if raw and answer.framed else answer.body
        answer.raw = []
        answer.content = b""
        self.last_chunk = received
        return received

    def interrupt(self, error: Exception | None) -> None:
        """End the wait for the answer with an error from elsewhere. None clears the interruption."""
        self._interruption = error
        self.wake()

    def pause(self) -> None:
        """Pause reading: the client is slower than the engine."""
        self.paused = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        self.paused = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def half_close(self) -> None:
        """Send end-of-file, so that the engine stops, and still receive an answer that is on its way."""
        if self.transport is not None and not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()
            self._half_closed = True

    def abort(self, error: Exception) -> None:
        """Cut the connection, as if it had been lost with this error."""
        self._fail(error)

    def close(self) -> None:
        """Close the connection. Without a complete answer it is reset, so that its port is free at once."""
        self._sink = None
        self.last_chunk = b""
        if not self.answer.complete:  # a failure's traceback refers to it until garbage is collected
            self.answer.discard()
        if self.transport is not None:
            if self.answer.complete and not self._half_closed:
                self.transport.close()
            else:
                cut(self.transport)
        if self.lost is None:
            self.lost = ConnectionResetError("closed by the gateway")

    def rest(self) -> None:
        """Forget the exchange that is over."""
        self.answer = _NO_ANSWER
        self.last_chunk = b""

    @property
    def reusable(self) -> bool:
        """Whether another exchange may follow.

        vLLM's server closes the connection behind a 500 without having said so (Starlette's ServerErrorMiddleware).
        """
        answer = self.answer
        clean = answer.complete and answer.keep_alive and answer.status != _CLOSES_BEHIND
        return self.lost is None and clean and not self._half_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        detect_lost_peer(transport.get_extra_info("socket"), _LOST_SECONDS)

    def data_received(self, data: bytes) -> None:
        answer, parser = self.answer, self._parser
        if parser is None or answer.complete:
            self._fail(ValueError("bytes without a request"))
            return
        self._bodiless += len(data)
        try:
            if len(data) <= _SLICE_BYTES:
                self._pieces = 0
                parser.feed_data(data)
                if self._pieces > _FEW_PIECES:
                    self._count_pieces(len(data))
            else:
                self._feed_slices(parser, data)
        except httptools.HttpParserError as error:
            answer.complete = False  # bytes behind the end prove that it was not the end
            self._fail(error)
            return
        if self._bodiless > _MAX_HEAD_BYTES and not answer.complete:
            self._fail(ValueError("a head or framing that is too long"))
            return
        if self._small_pieces > _MOST_SMALL_PIECES:
            self._fail(ValueError("chunks that are too small"))
            return
        if self._relay:
            self._keep_last(data)
            if self._sink is not None:
                self.chunks += 1
                self._sink.write(data)
            if not answer.complete:
                return
        elif answer.framed:
            if self._sink is None:
                answer.raw.append(data)
                self._kept_bytes += len(data)
                if self._kept_bytes > 2 * _MAX_HEAD_BYTES + _FRAMED_BYTES * answer.size:
                    self._fail(ValueError("too much framing"))
        elif not answer.status:  # an unfinished head: its bytes are needed if the answer is framed
            answer.raw.append(data)
        if self._sink is None:
            self._ahead += len(data)
            if self._ahead > _AHEAD_BYTES and not answer.complete and not self.paused:
                self.pause()
        self.wake()

    def _keep_last(self, data: bytes) -> None:
        """Keep the end of what is relayed. A short piece is joined with the one before, whose event it may end."""
        last = self.last_chunk
        self.last_chunk = data if len(data) > _SHORT_PIECE else last[-_SHORT_PIECE:] + data

    def _feed_slices(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        """Parse many bytes, and stop where their chunks are too small: `data_received` then fails."""
        for begin in range(0, len(data), _SLICE_BYTES):
            self._pieces = 0
            parser.feed_data(data[begin : begin + _SLICE_BYTES])
            self._count_pieces(_SLICE_BYTES)
            if self._small_pieces > _MOST_SMALL_PIECES:
                return

    def _count_pieces(self, size: int) -> None:
        """Count the pieces in `size` bytes if they are very small on average."""
        if size < _LEAST_PIECE * self._pieces:
            self._small_pieces += self._pieces

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Nothing to pause: the transport buffers the request until the engine reads it."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost is None and exc is None and not self._half_closed:
            self.answer.end()
        if self.lost is None:
            early = not self._half_closed and (
                not self.answer.complete or self._loop.time() - self.idle_since < _IDLE_SECONDS
            )
            self.lost = exc or ConnectionResetError("the engine closed the connection")
            self._closed = True
            if early:
                self._notify_lost()
        self._deadline.cancel()
        if self.on_closed is not None:
            self.on_closed(self)
        self.wake()

    def on_message_begin(self) -> None:
        if self.answer.status:
            raise ValueError("more bytes than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self.answer
        if answer.status:  # a trailer is no header of the answer (RFC 9110, 6.5.1)
            self._trailer_bytes += len(name) + len(value) + 4  # colon, space and line end
            if self._trailer_bytes > _MAX_HEAD_BYTES:
                raise ValueError("trailers that are too long")
            return
        name = name.lower()
        if name == b"transfer-encoding":
            answer.chunked = value.lower() == b"chunked"
        answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        answer = self.answer
        answer.status = self._parser.get_status_code()
        if answer.status < _FINAL:
            if answer.status == _SWITCHES:
                raise ValueError("an answer of another protocol")
            self._interim = True
            return
        answer.keep_alive = self._parser.should_keep_alive()
        answer.framed = answer.chunked and answer.is_event_stream
        if not answer.framed:
            answer.raw.clear()

    def on_body(self, data: bytes) -> None:
        answer = self.answer
        if self._interim:
            raise ValueError("an interim answer with a body")
        answer.size += len(data)
        self._pieces += 1
        self._bodiless = 0
        if self._relay:
            return
        if self._sink is not None:
            self._keep_last(data)
            self.chunks += 1
            self._sink.write(data)
        else:
            answer.add(data)

    def on_message_complete(self) -> None:
        if self._interim:  # an answer of 1xx: the final one follows (RFC 9110, 15.2)
            self._interim = False
            self.answer.skip_interim()
            return
        self.answer.complete = True
        self.used = True

    def _fail(self, error: Exception) -> None:
        self.lost = error
        if self.transport is not None:
            cut(self.transport)
        self._notify_lost()
        self.wake()

    def _notify_lost(self) -> None:
        callbacks, self.on_lost = self.on_lost, set()
        for callback in callbacks:
            callback()

    def wake(self) -> None:
        """Wake the task that waits for the answer."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _failure(self) -> Exception:
        """The exception that ends the wait for the answer."""
        if self.lost is not None:
            failure = f"connection lost: {self.lost}"
            if self._closed and self.answer.status >= _FINAL:
                events = len(_EVENT_END.findall(self.answer.body)) if self.answer.is_event_stream else -1
                return ClosedConnection(self.endpoint, failure, local=is_local(self.lost), events=events)
            return LostConnection(self.endpoint, failure, local=is_local(self.lost))
        if self._interruption is not None:
            return self._interruption
        if self._deadline.request_expired:
            return RequestExpired(f"{self.endpoint}: the request has expired")
        return DeadlineExceeded(self.endpoint, f"no answer within {self._deadline.seconds:g} s")
