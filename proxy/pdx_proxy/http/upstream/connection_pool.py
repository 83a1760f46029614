"""Connections to engines, kept alive between requests."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection
from typing import cast

from pdx_proxy.config.settings import Address
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import ConnectFailure, ConnectTimeout, EngineFailure


class ConnectionPool:
    """Idle connections by address. A connection is either in the pool or has exactly one owner."""

    def __init__(self, *, idle_seconds: float, connect_seconds: float) -> None:
        self._idle: dict[Address, deque[Connection]] = defaultdict(deque)
        """By address. The connection that was used last is at the end."""
        self._all: set[Connection] = set()
        """All open connections, in the pool or not."""
        self._gone: set[Address] = set()
        """Addresses of removed engines to which connections are still open."""
        self.authorization = ""
        """The header line with the engines' API key, or empty."""
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._loop = asyncio.get_running_loop()

    def take(self, address: Address, name: str) -> Connection | None:
        """An idle connection to the address, if there is one. `name` is the endpoint's, for error messages."""
        idle = self._idle[address]
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
            async with asyncio.timeout(self._connect_seconds):
                await self._loop.create_connection(
                    lambda: cast("asyncio.Protocol", connection), address.host, address.port
                )
        except TimeoutError as error:
            raise ConnectTimeout(name, f"no connection: {str(error) or 'timed out'}") from error
        except OSError as error:
            raise ConnectFailure(name, f"no connection: {error}") from error
        connection.address = address
        connection.on_closed = self._all.discard
        if connection.lost is None:  # a connection can be lost before `on_closed` is set
            self._all.add(connection)
        return connection

    def give(self, connection: Connection) -> None:
        """Take a connection back. It is used again if its exchange ended cleanly, else closed."""
        if not connection.reusable or connection.address in self._gone:
            connection.close()
            return
        connection.rest()
        connection.idle_since = now = self._loop.time()
        idle = self._idle[connection.address]
        if idle and idle[0].idle_since < now - self._idle_seconds:
            idle.popleft().close()
        idle.append(connection)

    def keep(self, present: Collection[Address], cut_seconds: float) -> None:
        """Close idle connections to engines that are not present; cut open ones after `cut_seconds`."""
        for address in [address for address in self._idle if address not in present]:
            for connection in self._idle.pop(address):
                connection.close()
        gone = {c.address for c in self._all if c.address not in present and c.lost is None}
        for address in gone - self._gone:
            self._loop.call_later(cut_seconds, self._cut, address)
        self._gone = gone

    def _cut(self, address: Address) -> None:
        if address in self._gone:
            for connection in [c for c in self._all if c.address == address and c.lost is None]:
                connection.abort(ConnectionResetError("its pod is gone"))

    def interrupt(self, address: Address, failure: EngineFailure) -> None:
        """End every wait for a first event from this address with a failure. Answers that are relayed go on."""
        for connection in [c for c in self._all if c.address == address and not c.relaying and not c.complete]:
            connection.interrupt(failure)

    def close(self) -> None:
        """Close idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
