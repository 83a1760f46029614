"""One keep-alive connection to an engine, and the answer that is being received on it.

httptools parses every byte, so that the end of an answer is known for sure; the bytes themselves are kept as they came,
so that a body can be moved to a client without being framed anew.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Protocol, cast

import httptools

from pdx_proxy.config.settings import Address
from pdx_proxy.http.upstream.deadline import Wait
from pdx_proxy.http.upstream.failures import DeadlineExceeded, LostConnection, RequestExpired
from pdx_proxy.telemetry.counters import Counters

_JOINED_BYTES: Final = 16 * 1024
"""A request up to this size is sent in one piece; the body of a larger one is not copied behind its head."""

_IDLE_SECONDS: Final = 4.0
"""An engine that ends an idle connection sooner has not done so for being idle: vLLM waits 5 s."""


class Sink(Protocol):
    """Where an answer's raw bytes go."""

    def write(self, data: bytes) -> None:
        """Take bytes; never blocks."""


class Answer:
    """An engine's answer while it arrives."""

    __slots__ = ("chunked", "complete", "headers", "keep_alive", "parts", "raw", "size", "status")

    def __init__(self) -> None:
        self.status = 0
        """0 until the head has arrived."""
        self.headers: list[tuple[bytes, bytes]] = []
        """Names are in lower case."""
        self.chunked = False
        self.keep_alive = False
        self.complete = False
        self.parts: list[bytes] = []
        """The body so far, without its framing; not kept once the answer is relayed."""
        self.raw: list[bytes] = []
        """The answer so far as it came, head and framing included; not kept once it is relayed."""
        self.size = 0
        """Bytes of body so far."""

    @property
    def body(self) -> bytes:
        """The body so far, joined."""
        if len(self.parts) > 1:
            self.parts = [b"".join(self.parts)]
        return self.parts[0] if self.parts else b""

    @property
    def document(self) -> bytes:
        """The body if it is called JSON, else nothing."""
        return self.body if self.header(b"content-type").startswith(b"application/json") else b""

    def header(self, name: bytes) -> bytes:
        """A header's value, or nothing. `name` in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


_NO_ANSWER: Final = Answer()
"""That of a connection which is asked nothing: it is complete, so that further bytes are one too many."""
_NO_ANSWER.complete = _NO_ANSWER.keep_alive = True


_NO_COUNTERS: Final = Counters()
"""Those of a connection that has relayed nothing yet."""


class Connection:
    """A connection to one engine: one exchange at a time, closed by its owner or given back to the pool.

    An asyncio protocol by its methods: with a base class it could not become a native class when it is compiled.
    """

    __slots__ = (
        "_counters",
        "_half_closed",
        "_interruption",
        "_loop",
        "_parser",
        "_relay",
        "_sent",
        "_sink",
        "_wait",
        "_waiter",
        "address",
        "answer",
        "endpoint",
        "forget",
        "idle_since",
        "last",
        "lost",
        "on_lost",
        "paused",
        "transport",
        "used",
    )

    def __init__(self, endpoint: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._counters = _NO_COUNTERS
        """Where the pieces of a relayed answer are counted."""
        self._relay = False
        self._sent = 0.0
        """When the exchange began, in the loop's time."""
        self._half_closed = False
        self._interruption: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wait = Wait(loop, self)
        self.endpoint = endpoint
        self.address = Address("", 0)
        """Where it leads; set by the pool."""
        self.answer = Answer()
        self.transport: asyncio.Transport | None = None
        self.paused = False
        """Whether the engine is not read, because the client is slow."""
        self.lost: Exception | None = None
        """Why the connection can not be used any more."""
        self.on_lost: set[Callable[[], None]] = set()
        """Told once when the engine ends the connection earlier than an idle one: it has died, or soon will."""
        self.used = False
        """Whether an exchange has been completed on it."""
        self.idle_since = 0.0
        self.forget: Callable[[Connection], None] | None = None
        """Told once the connection is over."""
        self.last = b""
        """The bytes relayed last: where a broken stream was cut."""

    def send(self, head: bytes, body: bytes) -> None:
        """Begin an exchange."""
        clean = self.answer.complete and self.answer.keep_alive
        self.answer = Answer()  # first of all: the answer before belongs to another client
        self._sent = self._loop.time()
        if self.transport is None or self.lost is not None:
            raise self._failure()
        self._relay = False
        self._sink = None
        self._interruption = None
        self._wait.forget()
        if self._parser is None or not clean:  # one that has read an answer to its end is ready for the next
            self._parser = httptools.HttpResponseParser(self)
        if len(body) <= _JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def allow(self, seconds: float, until: float = inf) -> None:
        """Let waits end after so many seconds from now with DeadlineExceeded; `inf` lets them last.

        From the time `until` on they end with RequestExpired.
        """
        self._wait.allow(seconds, until)

    def watch(self, idle: float, until: float) -> None:
        """Let the wait for the rest of a relayed answer end when none of it comes for `idle` seconds, or at `until`.

        An engine that is not read because the client is slow is not idle.
        """
        self._wait.watch(idle, until)

    @property
    def since_sent(self) -> float:
        """Seconds since the request was sent, however often its answer has been waited for."""
        return self._loop.time() - self._sent

    @property
    def left(self) -> float:
        """How much is left of the time that was allowed."""
        return self._wait.left

    @property
    def heard(self) -> int:
        """Bytes of the answer's body so far."""
        return self.answer.size

    @property
    def complete(self) -> bool:
        """Whether the answer is complete."""
        return self.answer.complete

    def progress(self) -> "asyncio.Future[None]":
        """What is done when more of the answer has arrived; raises LostConnection when no more will come."""
        self.check()
        self._waiter = self._loop.create_future()
        return self._waiter

    def check(self) -> None:
        """Raise what has happened to an answer that is not complete."""
        if (self.lost is not None or self._interruption is not None or self._wait.expired) and not self.answer.complete:
            raise self._failure()

    async def head(self) -> Answer:
        """The answer once its head has arrived."""
        while not self.answer.status:
            await self.progress()
        self.check()
        return self.answer

    async def whole(self) -> Answer:
        """The answer once it is complete."""
        while not self.answer.complete:
            await self.progress()
        return self.answer

    def relay(self, sink: Sink, counters: Counters, *, raw: bool) -> bytes:
        """From here on give the body to `sink`: as it came, or without its framing when `raw` is false.

        Each piece is counted.
        Returns what of the body has arrived so far; the caller writes it, together with a head.
        """
        self._relay = raw
        self._sink = sink
        self._counters = counters
        held = b"".join(self.answer.raw).split(b"\r\n\r\n", 1)[1] if raw else b"".join(self.answer.parts)
        self.answer.raw = []
        self.answer.parts = []
        self.last = held
        return held

    def interrupt(self, error: Exception | None) -> None:
        """End the wait for the answer: what it depends on has failed elsewhere. None takes that back."""
        self._interruption = error
        self.wake()

    def pause(self) -> None:
        """Stop reading: the client is slower than the engine."""
        self.paused = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self.paused = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def half_close(self) -> None:
        """Say that nobody listens any more, and still take an answer that is on its way."""
        if self.transport is not None and not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()
            self._half_closed = True

    def abort(self, error: Exception) -> None:
        """End the connection at once, as if it had been lost with this error."""
        self._fail(error)

    def close(self) -> None:
        """End the connection; what was written is still sent."""
        self._sink = None
        if self.transport is not None:
            self.transport.close()
        if self.lost is None:
            self.lost = ConnectionResetError("closed by the gateway")

    def rest(self) -> None:
        """Keep nothing of the exchange that is over."""
        self.answer = _NO_ANSWER

    @property
    def reusable(self) -> bool:
        """Whether another exchange may follow."""
        return self.lost is None and self.answer.complete and self.answer.keep_alive and not self._half_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        answer, parser = self.answer, self._parser
        if parser is None or answer.complete:
            self._fail(ValueError("bytes that no request asked for"))
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            answer.complete = False  # bytes behind its end belie it
            self._fail(error)
            return
        if self._relay:
            self.last = data
            if self._sink is not None:
                self._counters.chunks += 1
                self._sink.write(data)
            if not answer.complete:
                return
        elif self._sink is None:
            answer.raw.append(data)
        self.wake()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """A request is held by the engine's connection until the engine takes it."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost is None:
            early = not self._half_closed and (
                not self.answer.complete or self._loop.time() - self.idle_since < _IDLE_SECONDS
            )
            self.lost = exc or ConnectionResetError("the engine closed the connection")
            if early:
                self._tell_lost()
        self._wait.cancel()
        if self.forget is not None:
            self.forget(self)
        self.wake()

    def on_message_begin(self) -> None:
        if self.answer.status:
            raise ValueError("more bytes than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"transfer-encoding":
            self.answer.chunked = value.lower() == b"chunked"
        self.answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        answer = self.answer
        answer.status = self._parser.get_status_code()
        if answer.status < 200:
            raise ValueError("an interim answer that no request asked for")
        answer.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        answer = self.answer
        answer.size += len(data)
        if self._relay:
            return
        if self._sink is not None:
            self.last = data
            self._counters.chunks += 1
            self._sink.write(data)
        else:
            answer.parts.append(data)

    def on_message_complete(self) -> None:
        self.answer.complete = True
        self.used = True

    def _fail(self, error: Exception) -> None:
        self.lost = error
        if self.transport is not None:
            self.transport.abort()
        self._tell_lost()
        self.wake()

    def _tell_lost(self) -> None:
        told, self.on_lost = self.on_lost, set()
        for tell in told:
            tell()

    def wake(self) -> None:
        """Have whoever waits for the answer look at it."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _failure(self) -> Exception:
        """Why no more of the answer is waited for."""
        if self.lost is not None:
            return LostConnection(self.endpoint, f"connection lost: {self.lost}")
        if self._interruption is not None:
            return self._interruption
        if self._wait.request_over:
            return RequestExpired(f"{self.endpoint}: the request's time is over")
        return DeadlineExceeded(self.endpoint, f"no answer within {self._wait.seconds:g} s")
