"""Connections to engines, kept alive between requests."""

import asyncio
import logging
import os
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Final, cast

from pdx_proxy.config.settings import Address
from pdx_proxy.http.tcp import cut
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import ConnectFailure, ConnectTimeout, EngineFailure, is_local

_REPORT_SECONDS: Final = 60.0
"""Between two lines about the gateway's own limits."""
_ABANDONED_SECONDS: Final = 0.5
"""How long the gateway goes on opening a connection that no request waits for any more."""
_log: Final = logging.getLogger(__name__)

_HELD_BYTES: Final = 32 * 1024 * 1024
"""How many bytes of one engine's unfinished answers are held at the same time: of P's, of pages and of errors."""


def _reason(error: OSError) -> str:
    """Return why a connection failed. The loop's own text repeats the address and the number of the error."""
    number = error.errno
    text = os.strerror(number).lower() if number is not None and number > 0 else error.strerror or str(error)
    return text if "connect" in text else f"cannot connect: {text}"


_Opening = asyncio.Task[tuple[asyncio.Transport, asyncio.Protocol]]
"""A connection that is being opened."""


def _reset(opening: _Opening) -> None:
    if not opening.cancelled() and opening.exception() is None:
        cut(opening.result()[0])


class Departed:
    """The connections to an engine that is gone."""

    __slots__ = ("connections", "timer")

    def __init__(self, connections: set[Connection]) -> None:
        self.connections = connections
        self.timer: asyncio.TimerHandle | None = None
        """Cuts them."""


class ConnectionPool:
    """Idle connections by address. A connection is either in the pool or has exactly one owner."""

    def __init__(self, *, idle_seconds: float, connect_seconds: float) -> None:
        self._idle: dict[Address, deque[Connection]] = defaultdict(deque)
        """By address. The connection that was used last is at the end."""
        self._open: dict[Address, set[Connection]] = {}
        """By address, the open connections to the engine that is there, in the pool or not."""
        self._present: Mapping[Address, str] = {}
        """See `keep`."""
        self._others: set[Address] = set()
        """Addresses in `_open` that are not in `_present`."""
        self._departed: dict[tuple[Address, str], Departed] = {}
        """Connections to engines that are gone, until they are cut: by address and pod."""
        self._held: dict[Address, int] = {}
        """Bytes of large unfinished answers, by address."""
        self.authorization = ""
        """The header line with the engines' API key, or empty."""
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._loop = asyncio.get_running_loop()
        self._reported = -_REPORT_SECONDS
        """When the gateway's own limits were last logged."""

    def take(self, address: Address, name: str) -> Connection | None:
        """An idle connection to the address, if there is one. `name` is the endpoint's, for error messages."""
        idle = self._idle.get(address)
        if idle is None:
            return None
        oldest = self._loop.time() - self._idle_seconds
        while idle:
            connection = idle.pop()
            if connection.lost is None and connection.idle_since > oldest:
                connection.endpoint = name  # the ranks of one engine share its connections
                return connection
            connection.close()
        return None

    async def connect(self, address: Address, name: str) -> Connection:
        """A new connection to the address; raises ConnectFailure."""
        connection = Connection(name, self._loop)
        try:
            await self._open_to(connection, address)
        except TimeoutError as error:
            raise ConnectTimeout(name, "connecting timed out") from error
        except OSError as error:
            local = is_local(error)
            if local:
                self._report(error)
            raise ConnectFailure(name, _reason(error), local=local) from error
        except MemoryError as error:
            self._report(error)
            raise ConnectFailure(name, "cannot connect: out of memory", local=True) from error
        connection.address = address
        connections = self._open.setdefault(address, set())
        if address not in self._present:
            self._others.add(address)
        connection.on_closed = connections.discard
        if connection.lost is None:  # a connection can be lost before `on_closed` is set
            connections.add(connection)
        return connection

    async def _open_to(self, connection: Connection, address: Address) -> None:
        """Open a connection. If its request ends meanwhile, or if it takes too long, it is reset (see `_abandon`).

        Raises OSError, which includes TimeoutError, and MemoryError.
        """
        loop = self._loop
        opening = loop.create_task(
            loop.create_connection(lambda: cast("asyncio.Protocol", connection), address.host, address.port)
        )
        try:
            await asyncio.wait((opening,), timeout=self._connect_seconds)
        except BaseException:
            self._abandon(opening)
            raise
        if not opening.done():
            self._abandon(opening)
            raise TimeoutError
        opening.result()

    def _abandon(self, opening: _Opening) -> None:
        """Reset a connection that no request waits for any more: closing it would leave its port in TIME_WAIT.

        The loop gives access to a socket only when it is connected. A connection that is still not open after
        `_ABANDONED_SECONDS` is closed, which frees its port at once.
        """
        opening.add_done_callback(_reset)
        self._loop.call_later(_ABANDONED_SECONDS, opening.cancel)

    def _report(self, error: Exception) -> None:
        """Log that the gateway is at its own limits: one line a minute."""
        now = self._loop.time()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            _log.warning(
                "The gateway is out of local ports, open files, buffers or memory, and refuses requests meanwhile: %s",
                "out of memory" if isinstance(error, MemoryError) else error,
            )

    def give(self, connection: Connection) -> None:
        """Take a connection back. It is used again if its exchange ended cleanly, else closed."""
        if not connection.reusable or connection not in self._open.get(connection.address, ()):
            connection.close()
            return
        connection.rest()
        connection.idle_since = now = self._loop.time()
        idle = self._idle[connection.address]
        if idle and idle[0].idle_since < now - self._idle_seconds:
            idle.popleft().close()
        idle.append(connection)

    def hold(self, address: Address, added: int) -> bool:
        """Count bytes of the answers of an engine; return whether they are not too many."""
        held = self._held.pop(address, 0) + added
        if held > 0:
            self._held[address] = held
        return held <= _HELD_BYTES

    def keep(self, present: Mapping[Address, str], cut_seconds: float) -> None:
        """Receive the addresses of all engines, each with its pod.

        Idle connections to every other engine are closed. Open ones are cut after `cut_seconds`, unless the same pod is
        back by then: another pod with the same address has connections of its own. A container that restarts in its pod
        keeps its connections, because the kernel of its node has ended the old ones. The cost depends on the addresses
        that change and on their connections.
        """
        before = self._present
        if present == before and not self._others:
            return
        self._present = present
        for address in self._others:
            if address not in present:
                self._retire(address, "", cut_seconds)
        self._others.clear()
        for address, pod in before.items():
            if present.get(address) != pod:
                self._retire(address, pod, cut_seconds)
        for address, pod in present.items():
            if self._departed and before.get(address) != pod:
                self._restore(address, pod)

    def _retire(self, address: Address, pod: str, cut_seconds: float) -> None:
        """The engine is gone. Its open connections may be used until they end or are cut."""
        for connection in self._idle.pop(address, ()):
            connection.close()
        connections = {c for c in self._open.pop(address, ()) if c.lost is None}
        if not connections:
            return
        departed = Departed(connections)
        for connection in connections:
            connection.on_closed = connections.discard
        key = (address, pod)
        departed.timer = self._loop.call_later(cut_seconds, self._cut, key, departed)
        self._departed[key] = departed

    def _restore(self, address: Address, pod: str) -> None:
        """The engine is back: its connections are not cut."""
        departed = self._departed.pop((address, pod), None)
        if departed is None:
            return
        if departed.timer is not None:
            departed.timer.cancel()
        connections = self._open.setdefault(address, set())
        connections |= departed.connections
        for connection in departed.connections:
            connection.on_closed = connections.discard

    def _cut(self, key: tuple[Address, str], departed: Departed) -> None:
        if self._departed.get(key) is departed:
            del self._departed[key]
        for connection in list(departed.connections):
            connection.abort(ConnectionResetError("its pod is gone"))

    def interrupt(self, address: Address, failure: EngineFailure) -> None:
        """End every wait for a first event from the engine at this address with a failure.

        Answers that are relayed go on. Connections to an engine that had the address before end when they are cut.
        """
        for connection in list(self._open.get(address, ())):
            if not connection.relaying and not connection.complete:
                connection.interrupt(failure)

    def close(self) -> None:
        """Close idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
