"""Connections to engines, kept alive between requests."""

import asyncio
from collections import defaultdict, deque

from pdx_proxy.connection import Connection
from pdx_proxy.endpoints import Endpoint
from pdx_proxy.failures import ConnectFailure


class Pool:
    """Idle connections by endpoint. A connection is either here or with exactly one owner."""

    def __init__(self, *, idle_seconds: float, connect_seconds: float) -> None:
        self._idle: dict[str, deque[Connection]] = defaultdict(deque)
        """By name of endpoint, the one that was used last at the end."""
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._loop = asyncio.get_running_loop()

    def take(self, endpoint: Endpoint) -> Connection | None:
        """An idle connection to the endpoint, if there is one."""
        idle = self._idle[endpoint.name]
        oldest = self._loop.time() - self._idle_seconds
        while idle:
            connection = idle.pop()
            if connection.lost is None and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def connect(self, endpoint: Endpoint) -> Connection:
        """A new connection to the endpoint; raises ConnectFailure."""
        name = endpoint.name
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(name, self._loop), endpoint.address.host, endpoint.address.port
                )
        except (OSError, TimeoutError) as error:
            raise ConnectFailure(name, f"no connection: {str(error) or 'timed out'}") from error
        return connection

    def give(self, connection: Connection) -> None:
        """Take a connection back: to be used again if its exchange ended cleanly, else closed."""
        if not connection.reusable:
            connection.close()
            return
        connection.rest()
        connection.idle_since = now = self._loop.time()
        idle = self._idle[connection.endpoint]
        if idle and idle[0].idle_since < now - self._idle_seconds:
            idle.popleft().close()
        idle.append(connection)

    def close(self) -> None:
        """Close what is idle."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
