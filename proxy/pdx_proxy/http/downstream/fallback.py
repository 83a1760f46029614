"""The fallback: aiohttp reads the requests that the fast path does not.

Answers are written to its transport as bytes. When a client's next request is one for the fast path, the connection
returns there. (Not when it has come in one piece with the request before: aiohttp has read it then.)
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from pdx_proxy.http.downstream.boundary import RequestBoundary
from pdx_proxy.http.downstream.exchange import Handler, Pausable, date_line
from pdx_proxy.http.downstream.head import FORWARDED_FOR, MAX_HEADERS, is_host
from pdx_proxy.http.downstream.inflation import check_ratio, end_of, inflate, inflater_of, window_of
from pdx_proxy.http.downstream.transport import SendProgress, body_seconds, peer_of, sweep_client
from pdx_proxy.http.errors import BAD_REQUEST, RefusedError, body_too_large, body_too_slow, error_body, head_too_large
from pdx_proxy.http.messages import answer_head
from pdx_proxy.http.target import authority_of, split_target
from pdx_proxy.http.tcp import cut

_IDLE_SECONDS: Final = 75.0
"""How long a connection may wait for a whole head, from the end of the previous request."""
_MAX_LINE_BYTES: Final = 8190
_LISTS: Final = ("content-encoding", "tracestate", "upgrade", FORWARDED_FOR)
"""Headers whose lines are one list (RFC 9110, 5.3). The gateway reads the other ones as single values."""
_TOO_MANY: Final = "Too many headers"

_SLICE_BYTES: Final = 64 * 1024
"""Bytes that are parsed before the framing of what comes is judged again."""
_AMBIGUOUS: Final = "A request has a Content-Length, or a Transfer-Encoding that is chunked, and not both."
_NO_HOST: Final = "The header Host, or the host of the target, is no name or address, with or without a port."
_WASTE: Final = "it has too many tiny chunks, or trailers that are too long."
Discard = Callable[[asyncio.Transport, bool, bool], None]
"""Takes over a connection whose last answer is written: whether writing is paused, and the client floods."""
TakeBack = Callable[[asyncio.Transport, bytes, bool], bool]
"""Offers a connection to the fast path, with the first bytes of a request and whether its writing is paused. False: it
is declined."""


class _Protocol(RequestHandler):
    """aiohttp's connection, with flow control of the upstream."""

    __slots__ = ("boundary", "discard", "progress", "requests", "since", "take_back", "upstream")

    boundary: RequestBoundary
    discard: Discard
    requests: int
    """How many had begun at `since`."""
    since: float
    """Since when the connection waits for a request, as far as `sweep` has seen."""
    progress: SendProgress
    take_back: TakeBack
    upstream: Pausable | None

    def data_received(self, data: bytes) -> None:
        if data and self.give_back(data):
            return
        for begin in range(0, len(data), _SLICE_BYTES):
            piece = data[begin : begin + _SLICE_BYTES] if len(data) > _SLICE_BYTES else data
            self.boundary.follow(piece)
            if self.boundary.wastes:
                self._refuse_waste()
            if self._close or self._force_close:
                return
            super().data_received(piece)

    def _refuse_waste(self) -> None:
        """Read nothing more of a body whose framing costs too much, and answer 400."""
        request = self._current_request
        if request is not None:
            request.content.set_exception(web.RequestPayloadError(_WASTE))
        elif self.transport is not None:
            self.handle_error(cast("web.BaseRequest", None), 400, message=_WASTE)
            self.linger()
        self.close()

    def linger(self) -> None:
        """Give up the connection, whose last answer is written: what still comes is discarded; then it is closed."""
        transport, self.transport = self.transport, None
        if transport is not None and not transport.is_closing():
            self.discard(transport, self.writing_paused, self.boundary.wastes)
            self.connection_lost(None)

    @property
    def begun(self) -> int:
        """Requests whose head has come."""
        return self._request_count

    @property
    def waits(self) -> bool:
        """Whether the connection waits for a request."""
        return self._waiter is not None and not self._waiter.done()

    @property
    def _is_idle(self) -> bool:
        """Whether every request is answered and the next one may come."""
        return (
            self.waits
            and not self._messages
            and not (self._force_close or self._close or self._buffer_paused or self._reading_paused)
        )

    def give_back(self, data: bytes) -> bool:
        """Give the connection back to the fast path, which reads on from `data`, and end this object. False: not now.

        The fast path, unlike aiohttp, keeps nothing of a request that is answered.
        """
        transport = self.transport
        if transport is None or not self._is_idle or not self.boundary.is_reached(self._request_count):
            return False
        if not self.take_back(transport, data, self.writing_paused):
            return False
        self.transport = None  # it stays open
        self.connection_lost(None)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.upstream is not None:
            self.upstream.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.upstream is not None:
            self.upstream.resume()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that is not HTTP in vLLM's shape, without a traceback: any client can send one."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        if isinstance(exc, LineTooLong) or (message or "").startswith(_TOO_MANY):
            refusal = head_too_large(_MAX_LINE_BYTES, MAX_HEADERS)
            status, body = refusal.status, refusal.body()
        else:
            body = error_body(status, (message or "Invalid HTTP request received.").strip(), BAD_REQUEST)
        framing = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        if self.transport is not None:
            self.transport.write(answer_head(status, (), framing, date_line()) + body)
        answer = _Written()
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log nothing about a body that turns out to be broken while it is discarded."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kw)


class _Written(web.StreamResponse):
    """An answer that has been written already."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes | bytearray | memoryview = b"") -> None:
        return None


class AiohttpExchange:
    """An Exchange over aiohttp's request."""

    __slots__ = ("_count", "_protocol", "_request", "begun", "cors", "headers", "keep_alive", "path", "query")

    def __init__(self, request: web.BaseRequest, protocol: _Protocol) -> None:
        self._request = request
        self._protocol = protocol
        self._count: Callable[[int], None] | None = None
        self.headers = _joined_headers(request)
        self.path, self.query = split_target(request.raw_path)
        self.cors = b""
        # A proxy in front that speaks HTTP/1.0 may not understand chunks (RFC 9112, 6.1).
        self.keep_alive = request.keep_alive and (self.chunks or "transfer-encoding" not in request.headers)
        self.begun = False

    @property
    def method(self) -> str:
        return self._request.method

    @property
    def chunks(self) -> bool:
        return self._request.version >= HttpVersion11

    @property
    def closes(self) -> bool:
        return not self.keep_alive

    @property
    def size(self) -> int | None:
        request = self._request
        if request.content_length is None or "content-encoding" in request.headers:
            return None if request.body_exists else 0
        return request.content_length

    @property
    def peer(self) -> str:
        return peer_of(self._protocol.transport)

    def count_body(self, count: Callable[[int], None]) -> None:
        self._count = count

    def drop_body(self) -> None:
        if not self._request.content.is_eof():
            self.keep_alive = False

    async def body(self) -> bytes | bytearray:
        try:
            return await self._read()
        except TimeoutError:
            self.keep_alive = False
            raise body_too_slow() from None
        except RefusedError:
            self.keep_alive = False
            raise
        except web.RequestPayloadError as error:
            self.keep_alive = False
            raise RefusedError(400, f"The request body can not be read: {error}", BAD_REQUEST) from None

    async def _read(self) -> bytearray:
        largest = self._request._client_max_size
        if (self._request.content_length or 0) > largest:
            raise self._too_large()
        window = window_of(self.headers.get("content-encoding", "").strip().lower())
        self._continue()
        began, body = asyncio.get_running_loop().time(), bytearray()
        received, inflater = 0, None
        async with asyncio.timeout(body_seconds(0)) as limit:
            while piece := await self._request.content.readany():
                if not received and window:
                    inflater = inflater_of(window, piece)
                received += len(piece)
                while piece:
                    piece, rest = (piece, b"") if inflater is None else inflate(inflater, piece)
                    body += piece
                    if len(body) > largest:
                        raise self._too_large()
                    check_ratio(len(body), received)
                    if self._count is not None:
                        self._count(len(piece))
                    piece = rest
                    if piece:
                        await asyncio.sleep(0)
                limit.reschedule(began + body_seconds(len(body)))
        if window:
            body += end_of(inflater)
        return body

    def _continue(self) -> None:
        """Ask a client for its body that waits with it, and whose head is not refused."""
        expects = self._request.headers.get("expect", "").lower() == "100-continue"
        if expects and self.chunks and self._protocol.transport is not None:
            self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _too_large(self) -> RefusedError:
        self.keep_alive = False
        return body_too_large(self._request._client_max_size)

    def write(self, data: bytes) -> None:
        transport = self._protocol.transport
        if transport is None:
            return
        if self._request.method == "HEAD":  # its client would take a body for the next answer
            data = b"" if self.begun else data[: data.index(b"\r\n\r\n") + 4]
        self.begun = True
        transport.write(data)

    def bind_upstream(self, upstream: Pausable | None) -> None:
        self._protocol.upstream = upstream
        if upstream is not None and self._protocol.writing_paused:
            upstream.pause()

    def allow_origin(self, lines: bytes) -> None:
        self.cors = lines

    def close_after(self) -> None:
        self.keep_alive = False

    def abort(self) -> None:
        self.keep_alive = False
        transport = self._protocol.transport
        if transport is not None:
            cut(transport)

    def break_off(self) -> None:
        self.keep_alive = False
        if self._protocol.transport is not None:
            self._protocol.transport.close()


def _is_ambiguous(headers: Mapping[str, str]) -> bool:
    """Whether the head frames the body in two ways, or in one that is not understood."""
    coding = headers.get("transfer-encoding")
    return coding is not None and (coding.strip().lower() != "chunked" or "content-length" in headers)


def _joined_headers(request: web.BaseRequest) -> Mapping[str, str]:
    """The headers of a request, with several lines of a list as one."""
    headers = request.headers
    repeated = {name: lines for name in _LISTS if len(lines := headers.getall(name, ())) > 1}
    if not repeated:
        return headers
    joined = headers.copy()
    for name, lines in repeated.items():
        joined[name] = ",".join(lines)
    return joined


class FallbackServer(web.Server):
    """aiohttp's protocol factory; the handler is cancelled when its client disconnects."""

    def __init__(
        self,
        handler: Handler,
        take_back: TakeBack,
        discard: Discard,
        *,
        max_body_bytes: int,
    ) -> None:
        async def serve(request: web.BaseRequest) -> web.StreamResponse:
            protocol = request.protocol
            assert isinstance(protocol, _Protocol)
            if request.version not in (HttpVersion10, HttpVersion11):
                return protocol.handle_error(request, 400, message="HTTP/1.0 and HTTP/1.1 are spoken here.")
            if _is_ambiguous(request.headers):
                return protocol.handle_error(request, 400, message=_AMBIGUOUS)
            if not (is_host(request.headers.get("host", "")) and is_host(authority_of(request.raw_path))):
                return protocol.handle_error(request, 400, message=_NO_HOST)
            exchange, task = AiohttpExchange(request, protocol), asyncio.current_task()
            assert task is not None
            self.tasks.add(task)
            if "upgrade" in request.headers and protocol.boundary.has_more(protocol.begun):
                exchange.close_after()  # aiohttp loses what comes in one piece with such a request
            try:
                await handler(exchange)
            finally:
                self.tasks.discard(task)
                protocol.upstream = None
            if not request.content.is_eof():
                protocol._task_handler = None  # this task ends by itself
                protocol.linger()
            written = _Written()
            if not exchange.keep_alive:
                written.force_close()
            else:
                written._keep_alive = True
            return written

        self.open: set[RequestHandler] = set()
        """Connections whose last bytes may not have been sent."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """The handlers of the requests that are served."""
        limits = {"max_line_size": _MAX_LINE_BYTES, "max_field_size": _MAX_LINE_BYTES, "max_headers": MAX_HEADERS}
        reading = {"auto_decompress": False, "lingering_time": 0.0}  # aiohttp would do both before authentication
        self._options: dict[str, Any] = {"access_log": None, "keepalive_timeout": _IDLE_SECONDS, **limits, **reading}
        self._take_back = take_back
        self._discard = discard
        self._max_body_bytes = max_body_bytes
        super().__init__(serve, handler_cancellation=True, request_factory=self._request, **self._options)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.open.add(handler)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.open.discard(handler)

    def __call__(self) -> RequestHandler:
        protocol = _Protocol(self, loop=self._loop, **self._options)
        protocol.upstream = None
        protocol.progress = SendProgress()
        protocol.boundary = RequestBoundary()
        protocol.take_back = self._take_back
        protocol.discard = self._discard
        protocol.requests, protocol.since = -1, 0.0
        return protocol

    @property
    def transports(self) -> list[asyncio.Transport]:
        """The transports of all connections, closing ones included."""
        return list(self._connections.values())

    def sweep(self, now: float, send_seconds: float) -> None:
        """Cut the clients that have accepted no byte for `send_seconds`, and close those that send no whole head.

        Connections that have been idle since the last sweep go back to the fast path.
        """
        for protocol, transport in list(self._connections.items()):
            assert isinstance(protocol, _Protocol)
            sweep_client(transport, protocol.progress, now, send_seconds)
            if protocol.requests != protocol.begun or not protocol.waits:
                protocol.requests, protocol.since = protocol.begun, now
            elif not protocol.give_back(b"") and now - protocol.since > _IDLE_SECONDS:
                transport.close()

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._loop, client_max_size=self._max_body_bytes
        )
