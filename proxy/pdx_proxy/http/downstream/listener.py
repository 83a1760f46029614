"""The serving port: every connection begins in the fast lane and may go on with aiohttp."""

import asyncio
import contextlib
import resource
from typing import Final

from pdx_proxy.http.downstream.exchange import Handler
from pdx_proxy.http.downstream.fallback import Server
from pdx_proxy.http.downstream.http1 import Http1Connection

_LOOK_SECONDS: Final = 5.0
"""How often idle and slow clients are looked for: one timer for all of them."""
_FILES_PER_CLIENT: Final = 3
"""A client's connection, and one to a P and to a D for its request."""
_OTHER_FILES: Final = 64
"""Listeners, links, logs, and engines that are being warmed."""


def raise_file_limit() -> None:
    """Let this process, and those it starts, have as many open files as the system allows: each client takes some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections(files: int) -> int:
    """How many clients may be connected to a process that may have so many open files."""
    return max((files - _OTHER_FILES) // _FILES_PER_CLIENT, 1)


class Listener:
    """The protocol factory of the serving port, and the owner of its connections.

    A handler is cancelled when its client leaves.
    """

    def __init__(self, handler: Handler, *, max_body_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = Server(handler, max_body_bytes=max_body_bytes)
        self._lanes: set[Http1Connection] = set()
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)
        self.handle: Handler = handler
        self.max_body_bytes = max_body_bytes
        self.stopping = False
        self.most_connections = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def __call__(self) -> Http1Connection:
        lane = Http1Connection(self, self._loop)
        self._lanes.add(lane)
        return lane

    def room(self) -> int:
        """How many further connections are taken; less than nothing where there are too many."""
        return self.most_connections - len(self._lanes) - len(self._server._connections)

    def forget(self, lane: Http1Connection) -> None:
        """The lane's connection is over."""
        self._lanes.discard(lane)

    def give_away(self, lane: Http1Connection, transport: asyncio.Transport) -> asyncio.Protocol:
        """aiohttp's protocol, which a connection goes on with."""
        self._lanes.discard(lane)
        return self._server()

    def stop(self) -> None:
        """Accept no further request; idle connections are closed."""
        self.stopping = True
        self._looking.cancel()
        for lane in list(self._lanes):
            lane.stop()
        self._server.pre_shutdown()

    async def finish(self, seconds: float) -> None:
        """Wait so long for open requests, then end them."""
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        await asyncio.gather(self._finish(tasks, seconds), self._server.shutdown(seconds))

    async def _finish(self, tasks: "list[asyncio.Task[None]]", seconds: float) -> None:
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _look(self) -> None:
        now = self._loop.time()
        for lane in list(self._lanes):
            lane.look(now)
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)
