"""One request to one engine: counted while it is open, ended exactly once."""

from collections.abc import Iterable
from math import inf
from typing import Final

from pdx_proxy.balancing.load import Load
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.messages import request_head
from pdx_proxy.http.upstream.connection import Answer, Connection
from pdx_proxy.http.upstream.connection_pool import Pool
from pdx_proxy.http.upstream.failures import BadAnswer, LostConnection
from pdx_proxy.payload.first_event import opened

_BUSY: Final = 503
"""What an engine answers whose queue is full: it does not fail, it is at its limit."""
_STALE_SECONDS: Final = 0.1
"""How soon after a request it shows that the engine had closed the connection before."""


class Leg:
    """A leg of a hand-off, or a whole request.

    Life: `connect`, `send`, then one of `head`, `opened`, `whole`; `end` from any point, any number of times.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_counted",
        "_head",
        "_interruption",
        "_load",
        "_outliers",
        "_pool",
        "_unwanted",
        "begun",
        "endpoint",
        "until",
    )

    def __init__(
        self, pool: Pool, load: Load, endpoint: Endpoint, outliers: OutlierDetector, until: float = inf
    ) -> None:
        self._pool = pool
        self._load = load
        self._outliers = outliers
        load.acquire(endpoint)
        self._counted = True
        self._connection: Connection | None = None
        self._head = self._body = b""
        self._unwanted = False
        self._interruption: Exception | None = None
        self.endpoint = endpoint
        self.begun = False
        """Whether the engine may know of the request."""
        self.until = until
        """When the request's whole time is over, in the loop's time: waits then raise RequestExpired."""

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
        self._connection = self._pool.take(self.endpoint) or await self._pool.connect(self.endpoint)

    def send(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Send the request; a connection that has just been lost shows when the answer is awaited."""
        endpoint = self.endpoint
        if endpoint.pin:
            headers = (*headers, *endpoint.pin)
        self._head = request_head(method, path, endpoint.host, headers, len(body), self._pool.authorization)
        self._body = body
        self.begun = True
        try:
            self.connection.send(self._head, body)
        except LostConnection:
            self.connection.used = True

    async def head(self, seconds: float) -> Answer:
        """The answer once its head has arrived."""
        self.connection.allow(seconds)
        await self._until_head()
        return self._here()

    async def opened(self, seconds: float) -> Answer:
        """The answer once it may go to a client; raises BadAnswer when it may not."""
        self.connection.allow(seconds, self.until)
        await self._until_head()
        connection, name = self.connection, self.endpoint.name
        try:
            while not opened(name, connection.answer):
                await connection.progress()
                connection.check()
        except BadAnswer as failure:
            if connection.answer.status != _BUSY:
                self._outliers.failed(self.endpoint, failure.detail)
            raise
        if self._outliers.counts and connection.answer.status == 200:
            self._outliers.succeeded(self.endpoint)
        return self._here()

    async def whole(self, seconds: float) -> Answer:
        """The complete answer."""
        self.connection.allow(seconds, self.until)
        await self._until_head()
        connection = self.connection
        while not connection.answer.complete:
            await connection.progress()
        status = connection.answer.status
        if status >= 500 and status != _BUSY:
            self._outliers.failed(self.endpoint, f"status {status}")
        elif self._outliers.counts and status == 200:
            self._outliers.succeeded(self.endpoint)
        return self._here()

    def _here(self) -> Answer:
        answer = self.connection.answer
        if not answer.complete:
            self.connection.allow(inf)
        return answer

    def detach(self) -> "Leg":
        """Hand the leg to another owner; this one keeps nothing to end."""
        other = Leg(self._pool, self._load, self.endpoint, self._outliers)
        other._connection, self._connection = self._connection, None
        other._head, other._body, other.begun, other._unwanted = self._head, self._body, self.begun, self._unwanted
        self._count_no_longer()
        return other

    def half_close(self) -> None:
        """Say that nobody listens any more, and still take an answer that is on its way."""
        self._unwanted = True
        if self._connection is not None:
            self._connection.half_close()

    def interrupt(self, failure: Exception) -> None:
        """End the wait for the answer: what it depends on has failed elsewhere."""
        self._interruption = failure
        if self._connection is not None:
            self._connection.interrupt(failure)

    def resume(self) -> None:
        """Take an interruption back: the answer may be awaited again."""
        self._interruption = None
        if self._connection is not None:
            self._connection.interrupt(None)

    def give_back(self) -> None:
        """The exchange is over: the connection may serve others. The leg stays counted until `end`."""
        if self._connection is not None:
            self._pool.give(self._connection)
            self._connection = None

    def end(self) -> None:
        """Give the connection back, which closes it when the answer is not complete, and count the leg no longer."""
        self.give_back()
        self._count_no_longer()

    def _count_no_longer(self) -> None:
        if self._counted:
            self._counted = False
            self._load.release(self.endpoint)

    async def _until_head(self) -> None:
        """An engine may close an idle connection in the instant it is used again.

        What is lost on a used connection at once, before any byte of an answer, is therefore sent once more, on a new
        one, unless nobody wants it any more. Later the engine may have worked on it: a D would read KV a second time
        that may by then be another request's.
        """
        connection = self.connection
        try:
            while not connection.answer.status:
                await connection.progress()
            connection.check()
            self._body = b""  # it is not sent again, and a stream may last
            return
        except LostConnection:
            if not connection.used or connection.answer.status or self._unwanted or connection.lost is None:
                raise  # a connection that is not lost was interrupted
            if connection.since_sent > _STALE_SECONDS:
                raise
        left = connection.left
        connection.close()
        self._connection = await self._pool.connect(self.endpoint)
        if self._interruption is not None:
            raise self._interruption
        if self._unwanted:
            raise LostConnection(self.endpoint.name, "lost, and nobody wants it any more")
        self.connection.send(self._head, self._body)
        self.connection.allow(left, self.until)
        await self.connection.head()
