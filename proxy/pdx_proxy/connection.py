"""One keep-alive connection to an engine, and the answer that is being received on it.

httptools parses every byte, so that the end of an answer is known for sure; the bytes themselves are kept as they came,
so that a body can be moved to a client without being framed anew.
"""

import asyncio
from typing import Protocol, cast

import httptools

from pdx_proxy.failures import LostConnection
from pdx_proxy.settings import Address


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
        self.chunked = False
        self.keep_alive = False
        self.complete = False
        self.parts: list[bytes] = []
        """The body so far, without its framing; not kept once the answer is relayed."""
        self.raw: list[bytes] = []
        """The body so far as it came, framing included; not kept once the answer is relayed."""
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
        return next((value for key, value in self.headers if key.lower() == name), b"")


class Connection(asyncio.Protocol):
    """A connection to one engine: one exchange at a time, closed by its owner or given back to the pool."""

    __slots__ = (
        "__weakref__",
        "_half_closed",
        "_interruption",
        "_loop",
        "_parser",
        "_relay",
        "_sink",
        "_waiter",
        "address",
        "answer",
        "endpoint",
        "idle_since",
        "last",
        "lost",
        "transport",
        "used",
    )

    def __init__(self, endpoint: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._relay = False
        self._half_closed = False
        self._interruption: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.endpoint = endpoint
        self.address = Address("", 0)
        """Where it leads; set by the pool."""
        self.answer = Answer()
        self.transport: asyncio.Transport | None = None
        self.lost: Exception | None = None
        """Why the connection can not be used any more."""
        self.used = False
        """Whether an exchange has been completed on it."""
        self.idle_since = 0.0
        self.last = b""
        """The bytes relayed last: where a broken stream was cut."""

    def send(self, request: bytes) -> None:
        """Begin an exchange."""
        self.answer = Answer()  # first of all: the answer before belongs to another client
        if self.transport is None or self.lost is not None:
            raise self._failure()
        self._relay = False
        self._sink = None
        self._interruption = None
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    async def progress(self) -> None:
        """Wait until more of the answer has arrived; raises LostConnection when no more will come."""
        if self.lost is not None:
            raise self._failure()
        if self._interruption is not None:
            raise self._interruption
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self.answer.complete:
            return
        if self.lost is not None:
            raise self._failure()
        if self._interruption is not None:
            raise self._interruption

    async def head(self) -> Answer:
        """The answer once its head has arrived."""
        while not self.answer.status and not self.answer.complete:
            await self.progress()
        return self.answer

    async def whole(self) -> Answer:
        """The answer once it is complete."""
        while not self.answer.complete:
            await self.progress()
        return self.answer

    def relay(self, sink: Sink, *, raw: bool) -> bytes:
        """From here on give the body to `sink`: as it came, or without its framing when `raw` is false.

        Returns what of the body has arrived so far; the caller writes it, together with a head.
        """
        self._relay = raw
        self._sink = sink
        held = b"".join(self.answer.raw if raw else self.answer.parts)
        self.answer.raw = []
        self.answer.parts = []
        self.last = held
        return held

    def interrupt(self, error: Exception) -> None:
        """End the wait for the answer: what it depends on has failed elsewhere."""
        self._interruption = error
        self._wake()

    def pause(self) -> None:
        """Stop reading: the client is slower than the engine."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
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

    @property
    def reusable(self) -> bool:
        """Whether another exchange may follow."""
        return self.lost is None and self.answer.complete and self.answer.keep_alive and not self._half_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        answer = self.answer
        if self._parser is None or answer.complete:
            self._fail(ValueError("bytes that no request asked for"))
            return
        had_head = bool(answer.status)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            answer.complete = False  # bytes behind its end belie it
            self._fail(error)
            return
        if self._relay:
            self.last = data
            if self._sink is not None:
                self._sink.write(data)
            if not answer.complete:
                return
        elif self._sink is None:
            self._hold(data, had_head)
        self._wake()

    def _hold(self, data: bytes, had_head: bool) -> None:
        raw = self.answer.raw
        raw.append(data)
        if not had_head and self.answer.status:
            self.answer.raw = [b"".join(raw).split(b"\r\n\r\n", 1)[1]]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost is None:
            self.lost = exc or ConnectionResetError("the engine closed the connection")
        self._wake()

    def on_message_begin(self) -> None:
        if self.answer.status:
            raise ValueError("more bytes than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        answer = self.answer
        answer.status = self._parser.get_status_code()
        if answer.status < 200:
            raise ValueError("an interim answer that no request asked for")
        answer.keep_alive = self._parser.should_keep_alive()
        answer.chunked = answer.header(b"transfer-encoding").lower() == b"chunked"

    def on_body(self, data: bytes) -> None:
        answer = self.answer
        answer.size += len(data)
        if self._relay:
            return
        if self._sink is not None:
            self.last = data
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
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _failure(self) -> LostConnection:
        return LostConnection(self.endpoint, f"connection lost: {self.lost}")
