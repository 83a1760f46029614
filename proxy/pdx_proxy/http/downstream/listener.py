"""The serving port: every connection begins on the fast path; aiohttp may take it over."""

import asyncio
import contextlib
import resource
from typing import Final

from pdx_proxy.http.downstream.exchange import Handler
from pdx_proxy.http.downstream.fallback import FallbackServer
from pdx_proxy.http.downstream.http1 import Http1Connection
from pdx_proxy.http.downstream.transport import cut

_SWEEP_SECONDS: Final = 5.0
"""How often idle and slow clients are closed: one timer for all connections."""
_FLUSH_SECONDS: Final = 0.02
"""How often the gateway checks, while it stops, whether clients have received the last bytes."""
_LAST_SECONDS: Final = 1.0
"""How long clients may still receive answers that end with the shutdown deadline."""
_FILES_PER_CLIENT: Final = 3
"""A client's connection, and for its request one to a P and one to a D."""
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
    """The protocol factory of the serving port, and the owner of its connections.

    The handler is cancelled when its client disconnects.
    """

    def __init__(self, handler: Handler, *, max_body_bytes: int, send_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._fallback = FallbackServer(handler, max_body_bytes=max_body_bytes)
        self._connections: set[Http1Connection] = set()
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
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

    def stop(self) -> None:
        """Accept no further request; close idle connections."""
        self.stopping = True
        for connection in list(self._connections):
            connection.stop()
        self._fallback.pre_shutdown()

    async def finish(self, seconds: float) -> None:
        """Wait up to `seconds` for open requests, then cancel them; wait until clients have the last bytes."""
        ends = self._loop.time() + seconds
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        transports = self._fallback.transports
        try:
            await asyncio.gather(self._finish(tasks, seconds), self._fallback.shutdown(seconds))
            transports += [each.transport for each in self._connections if each.transport is not None]
            await self._flush(transports, max(ends, self._loop.time() + _LAST_SECONDS))
        finally:
            self._sweeper.cancel()

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
        for connection in list(self._connections):
            connection.sweep(now)
        self._fallback.sweep(now, self.send_seconds)
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
