"""The serving port: every connection begins on the fast path; aiohttp takes over for requests that are not for it."""

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable
from math import inf
from typing import Final, cast

from pdx_proxy.http.downstream.certificate import HANDSHAKE_SECONDS, SHUTDOWN_SECONDS
from pdx_proxy.http.downstream.closing import has_backlog, refuse_handshakes
from pdx_proxy.http.downstream.exchange import Handler
from pdx_proxy.http.downstream.fallback import FallbackServer
from pdx_proxy.http.downstream.head import forget_heads, may_be_hot
from pdx_proxy.http.downstream.http1 import Http1Connection
from pdx_proxy.http.tcp import cut

_SWEEP_SECONDS: Final = 5.0
"""How often idle and slow clients are closed, and heads forgotten: one timer for all connections."""
_FLUSH_SECONDS: Final = 0.02
"""How often the gateway checks, while it stops, whether clients have received the last bytes."""
_LAST_SECONDS: Final = 1.0
"""How long clients may still receive answers that end with the shutdown deadline."""
_FILES_PER_CLIENT: Final = 3
"""A client's connection, and for its request one to a P and one to a D."""
BACKLOG: Final = 1024
"""Connections that wait to be accepted."""
_FIRST_REQUEST_SECONDS: Final = 1.0
"""How long a connection that was accepted at the end may take to send its first request."""
_POLL_SECONDS: Final = 0.01
_OTHER_FILES: Final = 64
"""Listeners, channels, logs, and warm-ups."""


def raise_file_limit() -> None:
    """Raise the limit of open files of this process and its children as far as allowed: each client takes some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections(files: int) -> int:
    """How many clients may be connected to a process with this limit of open files."""
    return max((files - _OTHER_FILES) // _FILES_PER_CLIENT, 1)


class Listener:
    """The owner of a listening socket and its connections, and their protocol factory.

    The handler is cancelled when its client disconnects. Call `start`, `close` and `finish` in this order.
    """

    def __init__(self, handler: Handler, *, max_body_bytes: int, send_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._fallback = FallbackServer(handler, self._take_back, self._discard, max_body_bytes=max_body_bytes)
        self._connections: set[Http1Connection] = set()
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        self._sock: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._closed_at = 0.0
        self.handle: Handler = handler
        self.max_body_bytes = max_body_bytes
        self.send_seconds = send_seconds
        self.stopping = False
        self.most_connections = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def __call__(self) -> Http1Connection:
        connection = Http1Connection(self, self._loop)
        self._connections.add(connection)
        return connection

    def room(self) -> int:
        """How many more connections are accepted; negative when there are too many."""
        return self.most_connections - len(self._connections) - len(self._fallback._connections)

    def forget(self, connection: Http1Connection) -> None:
        """The connection is closed."""
        self._connections.discard(connection)

    def fall_back(self, connection: Http1Connection) -> asyncio.Protocol:
        """Return aiohttp's protocol, which takes over the connection."""
        self._connections.discard(connection)
        return self._fallback()

    def _take_back(self, transport: asyncio.Transport, data: bytes, write_paused: bool) -> bool:
        """Let the fast path read on from the first bytes of a request, unless they are not for it."""
        if self.stopping or not may_be_hot(data):
            return False
        self().resume(transport, data, write_paused)
        return True

    def _discard(self, transport: asyncio.Transport, write_paused: bool, floods: bool) -> None:
        """Discard what a client still sends behind its last answer, for a moment, and close its connection."""
        self().discard(transport, write_paused, floods)

    async def start(self, sock: socket.socket, context: ssl.SSLContext | None = None) -> None:
        """Accept the connections of a bound socket, and own the socket. With a context, they use TLS."""
        factory = cast("Callable[[], asyncio.Protocol]", self)
        self._sock = sock
        if context is None:
            self._server = await self._loop.create_server(factory, sock=sock, backlog=BACKLOG)
            return
        self._server = await self._loop.create_server(
            factory,
            sock=sock,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )

    async def close(self, handshake_seconds: float) -> None:
        """Accept the connections whose handshake has begun, and no further one. Close idle connections.

        A handshake is complete within one round trip: `handshake_seconds`. From here on every answer closes its
        connection. A connection on which bytes of a request have arrived stays open for its answer, and so does a new
        one for a moment (see `finish`): none is reset without an answer.
        """
        self.stopping = True
        self._closed_at = self._loop.time()
        server, self._server = self._server, None
        if self._sock is not None and server is not None:
            refuse_handshakes(self._sock)
            await asyncio.sleep(handshake_seconds)
            sock, ends = self._sock, self._loop.time() + _FIRST_REQUEST_SECONDS  # without filters it may be never
            await self._until(lambda: not has_backlog(sock), ends, 0.0)
            await asyncio.sleep(0)  # asyncio's own loop creates a connection in the turn after it has accepted it
            server.close()
        for connection in list(self._connections):
            connection.stop(self._closed_at)

    async def finish(self, seconds: float) -> None:
        """Wait up to `seconds` for open requests, then cancel them; wait until clients have the last bytes."""
        ends = self._loop.time() + seconds
        await self._first_requests(min(ends, self._loop.time() + _FIRST_REQUEST_SECONDS))
        self._fallback.pre_shutdown()
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        tasks += self._fallback.tasks
        transports = self._fallback.transports
        try:
            # First of all: aiohttp closes a connection before it cancels the handler, which could then write no end.
            await self._finish(tasks, max(ends - self._loop.time(), 0.0))
            await self._fallback.shutdown(max(ends - self._loop.time(), _LAST_SECONDS))  # 0 would be without limit
            transports += [each.transport for each in self._connections if each.transport is not None]
            await self._flush(transports, max(ends, self._loop.time() + _LAST_SECONDS))
            await self._until(lambda: not self._connections and not self._fallback.open, ends)
        finally:
            self._sweeper.cancel()

    async def _first_requests(self, ends: float) -> None:
        """Wait until no connection may be about to begin its first request. Answer those whose head is incomplete."""
        await self._until(lambda: not any(c.is_expectant(self._closed_at) for c in self._connections), ends)
        for connection in list(self._connections):
            connection.stop(inf)

    async def _until(self, condition: Callable[[], bool], ends: float, pause: float = _POLL_SECONDS) -> None:
        """Wait for a condition, at most until `ends`. It is polled, because the kernel reports no event for it."""
        while not condition() and self._loop.time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(pause)

    async def _flush(self, transports: list[asyncio.Transport], ends: float) -> None:
        """Wait until nothing waits to be written, then cut the clients that have not accepted everything.

        The bytes in this process are lost when it ends; the kernel sends its own.
        """
        while transports and self._loop.time() < ends:
            transports = [transport for transport in transports if transport.get_write_buffer_size()]
            if transports:
                await asyncio.sleep(_FLUSH_SECONDS)
        for transport in transports:
            cut(transport)

    async def _finish(self, tasks: "list[asyncio.Task[None]]", seconds: float) -> None:
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _sweep(self) -> None:
        now = self._loop.time()
        forget_heads()
        for connection in list(self._connections):
            connection.sweep(now)
            if connection.has_no_handshake(now - HANDSHAKE_SECONDS - _SWEEP_SECONDS):
                # asyncio reports neither the begin nor the end of a connection whose TLS handshake fails.
                self.forget(connection)
        self._fallback.sweep(now, self.send_seconds)
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
