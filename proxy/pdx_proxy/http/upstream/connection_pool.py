"""Connections to engines, kept alive between requests."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection
from typing import cast

from pdx_proxy.config.settings import Address
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.failures import ConnectFailure


class Pool:
    """Idle connections by address. A connection is either here or with exactly one owner."""

    def __init__(self, *, idle_seconds: float, connect_seconds: float) -> None:
        self._idle: dict[Address, deque[Connection]] = defaultdict(deque)
        """By address, the one that was used last at the end."""
        self._all: set[Connection] = set()
        """Until they are lost."""
        self._gone: set[Address] = set()
        """Addresses whose engines are gone while connections to them are with owners."""
        self.authorization = ""
        """The line of a request's head with the engines' own key, or nothing."""
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._loop = asyncio.get_running_loop()

    def take(self, endpoint: Endpoint) -> Connection | None:
        """An idle connection to the endpoint, if there is one."""
        idle = self._idle[endpoint.address]
        oldest = self._loop.time() - self._idle_seconds
        while idle:
            connection = idle.pop()
            if connection.lost is None and connection.idle_since > oldest:
                connection.endpoint = endpoint.name  # ranks of one engine share its connections
                return connection
            connection.close()
        return None

    async def connect(self, endpoint: Endpoint) -> Connection:
        """A new connection to the endpoint; raises ConnectFailure."""
        name = endpoint.name
        connection = Connection(name, self._loop)
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self._loop.create_connection(
                    lambda: cast("asyncio.Protocol", connection), endpoint.address.host, endpoint.address.port
                )
        except (OSError, TimeoutError) as error:
            raise ConnectFailure(name, f"no connection: {str(error) or 'timed out'}") from error
        connection.address = endpoint.address
        connection.forget = self._all.discard
        if connection.lost is None:  # it may be over before this is reached, and is then forgotten by nobody
            self._all.add(connection)
        return connection

    def give(self, connection: Connection) -> None:
        """Take a connection back: to be used again if its exchange ended cleanly, else closed."""
        if not connection.reusable or connection.address in self._gone:
            connection.close()
            return
        connection.rest()
        connection.idle_since = now = self._loop.time()
        idle = self._idle[connection.address]
        if idle and idle[0].idle_since < now - self._idle_seconds:
            idle.popleft().close()
        idle.append(connection)

    def keep(self, known: Collection[Address], cut_seconds: float) -> None:
        """Close idle connections to engines elsewhere, which are gone, and after a while cut what is open to them."""
        for address in [address for address in self._idle if address not in known]:
            for connection in self._idle.pop(address):
                connection.close()
        gone = {c.address for c in self._all if c.address not in known and c.lost is None}
        for address in gone - self._gone:
            self._loop.call_later(cut_seconds, self._cut, address)
        self._gone = gone

    def _cut(self, address: Address) -> None:
        if address in self._gone:
            for connection in [c for c in self._all if c.address == address and c.lost is None]:
                connection.abort(ConnectionResetError("its pod is gone"))

    def close(self) -> None:
        """Close what is idle."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
