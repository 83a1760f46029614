"""One request to one engine: counted while it is open, ended exactly once."""

import asyncio
from collections.abc import Coroutine, Iterable

from pdx_proxy.connection import Answer, Connection
from pdx_proxy.endpoints import Endpoint, Load
from pdx_proxy.failures import DeadlineExceeded, EngineFailure, LostConnection
from pdx_proxy.opening import opened
from pdx_proxy.pool import Pool
from pdx_proxy.wire import request_bytes


class Leg:
    """A leg of a hand-off, or a whole request.

    Life: `connect`, `send`, then one of `head`, `opened`, `whole`; `end` from any point, any number of times.
    """

    __slots__ = (
        "_connection",
        "_hold",
        "_interruption",
        "_load",
        "_pool",
        "_request",
        "_unwanted",
        "begun",
        "endpoint",
    )

    def __init__(self, pool: Pool, load: Load, endpoint: Endpoint) -> None:
        self._pool = pool
        self._load = load
        self._hold = load.acquire(endpoint)
        self._connection: Connection | None = None
        self._request = b""
        self._unwanted = False
        self._interruption: EngineFailure | None = None
        self.endpoint = endpoint
        self.begun = False
        """Whether the engine may know of the request."""

    @property
    def connection(self) -> Connection:
        """The connection that carries the leg."""
        assert self._connection is not None, "a leg connects before it speaks"
        return self._connection

    @property
    def connected(self) -> bool:
        """Whether it has a connection."""
        return self._connection is not None

    @property
    def answer(self) -> Answer:
        """The answer so far."""
        return self.connection.answer

    async def connect(self) -> None:
        """Have a connection ready; raises ConnectFailure."""
        self._connection = await self._pool.take(self.endpoint)

    def send(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Send the request; a connection that has just been lost shows when the answer is awaited."""
        self._request = request_bytes(method, path, str(self.endpoint.address), headers, body)
        self.begun = True
        try:
            self.connection.send(self._request)
        except LostConnection:
            self.connection.used = True

    async def head(self, seconds: float) -> Answer:
        """The answer once its head has arrived."""
        return await self._within(seconds, self._until_head())

    async def opened(self, seconds: float) -> Answer:
        """The answer once it may go to a client; raises BadAnswer when it may not."""
        return await self._within(seconds, self._until_opened())

    async def whole(self, seconds: float) -> Answer:
        """The complete answer."""
        return await self._within(seconds, self._until_whole())

    def detach(self) -> "Leg":
        """Hand the leg to another owner; this one keeps nothing to end."""
        other = Leg(self._pool, self._load, self.endpoint)
        other._connection, self._connection = self._connection, None
        other._request, other.begun, other._unwanted = self._request, self.begun, self._unwanted
        self._hold.release()
        return other

    def half_close(self) -> None:
        """Say that nobody listens any more, and still take an answer that is on its way."""
        self._unwanted = True
        if self._connection is not None:
            self._connection.half_close()

    def interrupt(self, failure: EngineFailure) -> None:
        """End the wait for the answer: what it depends on has failed elsewhere."""
        self._interruption = failure
        if self._connection is not None:
            self._connection.interrupt(failure)

    def give_back(self) -> None:
        """The exchange is over: the connection may serve others. The leg stays counted until `end`."""
        if self._connection is not None:
            self._pool.give(self._connection)
            self._connection = None

    def end(self) -> None:
        """Give the connection back, which closes it when the answer is not complete, and count the leg no longer."""
        self.give_back()
        self._hold.release()

    async def _within(self, seconds: float, wait: Coroutine[None, None, Answer]) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                return await wait
        except TimeoutError as error:
            raise DeadlineExceeded(self.endpoint.name, f"no answer within {seconds:g} s") from error

    async def _until_head(self) -> Answer:
        """An engine may close an idle connection in the instant it is used again.

        What is lost on a used connection before any byte of an answer is therefore sent once more, on a new one, unless
        nobody wants it any more.
        """
        reused = self.connection.used
        try:
            return await self.connection.head()
        except LostConnection:
            if not reused or self.answer.status or self._unwanted or self.connection.lost is None:
                raise  # a connection that is not lost was interrupted
        self.connection.close()
        self._connection = await self._pool.connect(self.endpoint)
        if self._interruption is not None:
            raise self._interruption
        self.connection.send(self._request)
        return await self.connection.head()

    async def _until_opened(self) -> Answer:
        answer = await self._until_head()
        while not opened(self.endpoint.name, answer):
            await self.connection.progress()
        return answer

    async def _until_whole(self) -> Answer:
        await self._until_head()
        return await self.connection.whole()
