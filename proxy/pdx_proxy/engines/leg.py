"""One request to one engine. It is counted while it is open and ends exactly once."""

import asyncio
from collections.abc import Iterable
from math import inf
from typing import Final

from pdx_proxy.balancing.load import Slot
from pdx_proxy.balancing.prefill.backlog import Reservation
from pdx_proxy.engines.leg_observer import LegObserver
from pdx_proxy.http.messages import request_head
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.connection import Connection, Sink
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ClosedConnection,
    DeadlineExceeded,
    EngineBusy,
    LostConnection,
    Reason,
    unready,
)
from pdx_proxy.http.upstream.retry_after import retry_after
from pdx_proxy.payload.body import LegBody
from pdx_proxy.payload.first_event import is_open

_BUSY: Final = 503
"""The status of an engine whose queue is full. The engine is at its limit; it does not fail."""
WHOLE_BYTES: Final = 2 * 1024 * 1024
"""The largest answer that is read whole, if its reader sets no other bound: of a P, with the IDs of its blocks."""
_ERROR_BYTES: Final = 1024 * 1024
"""Of an answer with another status than 200, so much is read: the status shows what it means."""
_COUNTED_BYTES: Final = 64 * 1024
"""An answer that is longer counts among the bytes that the gateway holds of its engine's unfinished answers."""
_OUTCOME_SECONDS: Final = 1.0
"""How long an engine that has produced an output may take to send what the output contains. vLLM sends the error of an
engine behind a chat's role without a pause."""
_STALE_SECONDS: Final = 0.1
"""A loss within this time after the request means that the engine had closed the connection before."""


class Leg:
    """A leg of a hand-off, or a whole request.

    Call `connect`, `send`, then one of `head`, `first_event`, `whole`. Call `end` at any time, any number of times.
    """

    __slots__ = (
        "_abandoned",
        "_blocked",
        "_body",
        "_connection",
        "_head",
        "_held",
        "_interruption",
        "_observer",
        "_once",
        "_path",
        "_pool",
        "_refused",
        "_size",
        "_slot",
        "deadline",
        "endpoint",
        "judged",
        "reservation",
        "sent",
        "serves",
    )

    def __init__(self, pool: ConnectionPool, observer: LegObserver, slot: Slot, deadline: float = inf) -> None:
        self._pool = pool
        self._observer = observer
        self._slot: Slot | None = slot
        """Released when the leg ends; None: the leg has ended."""
        self._blocked = False
        """Whether it is counted as a leg whose client does not read."""
        self._connection: Connection | None = None
        self._head = b""
        self._body: LegBody = b""
        self._path = ""
        self._size = 0
        """Bytes of the request's body."""
        self._abandoned = False
        """Whether the answer is no longer needed."""
        self._once = False
        """Whether the request must not be sent a second time: its engine reads KV with it."""
        self._interruption: Exception | None = None
        self._held = 0
        """Bytes of the answer that the pool counts."""
        self._refused = False
        """Whether its engine has refused it, so that it was no work."""
        self.endpoint = slot.endpoint
        self.reservation: Reservation | None = None
        """The request at its engine for the policies, from the beginning to the answer or the end; None: no policy."""
        self.sent = False
        """Whether the engine may have received the request."""
        self.serves = True
        """Whether its end shows that the engine serves requests, or refuses them."""
        self.judged = False
        """Whether its owner finds out if an answer is evidence about the engine. The leg then reports no error."""
        self.deadline = deadline
        """When the request expires, in the loop's time. From then on waits raise RequestExpired."""

    @property
    def connection(self) -> Connection:
        """The connection that carries the leg."""
        assert self._connection is not None, "a leg connects before it sends"
        return self._connection

    @property
    def connected(self) -> bool:
        """Whether the leg has a connection."""
        return self._connection is not None

    @property
    def answer(self) -> Answer:
        """The answer so far."""
        return self.connection.answer

    async def connect(self) -> None:
        """Take an idle connection or open one; raises ConnectFailure."""
        address, name = self.endpoint.address, self.endpoint.name
        self._connection = self._pool.take(address, name) or await self._pool.connect(address, name)

    async def connect_fresh(self) -> None:
        """Open a connection of its own; raises ConnectFailure."""
        self._connection = await self._pool.connect(self.endpoint.address, self.endpoint.name)

    def send(
        self, method: str, path: str, headers: Iterable[tuple[str, str]], body: LegBody, *, once: bool = False
    ) -> None:
        """Send the request. If the connection is already lost, the wait for the answer handles that.

        `once`: the request must not be sent a second time, because its engine reads KV with it.
        """
        endpoint = self.endpoint
        if endpoint.pin:
            headers = (*headers, *endpoint.pin)
        self._size = len(body)
        self._head = request_head(method, path, endpoint.host, headers, self._size, self._pool.authorization)
        self._body, self._path, self._once = body, path, once
        self.sent = True
        try:
            self.connection.send(self._head, body)
        except LostConnection:
            self.connection.used = True

    async def head(self, seconds: float) -> Answer:
        """The answer once its head has arrived."""
        self.connection.set_timeout(seconds)
        await self._receive_head()
        return self._received()

    async def first_event(self, seconds: float) -> Answer:
        """The answer once its first event shows that it may go to a client; raises BadAnswer for a failure.

        An answer of 429 or 503 with Retry-After is one (EngineBusy). An engine that has produced an output may be
        silent: the answer is open if no failure follows soon.
        """
        self.connection.set_timeout(seconds, self.deadline)
        await self._receive_head()
        connection, name, proven = self.connection, self.endpoint.name, False
        try:
            while not is_open(name, connection.answer, self._path, self._size):
                if connection.answer.unread:
                    await asyncio.sleep(0)
                    continue
                if connection.answer.size > _COUNTED_BYTES and connection.answer.status != 200:
                    self._hold()
                if connection.answer.generates and not proven:
                    proven = True
                    connection.set_timeout(_OUTCOME_SECONDS, self.deadline)
                await connection.progress()
                connection.check()
        except BadAnswer as failure:
            self._check_busy()
            self._check_ready(failure.body)
            if connection.answer.status != _BUSY and not self.judged:
                self._observer.failed(self.endpoint, failure.detail)
            raise
        except DeadlineExceeded:
            if not proven:
                raise
        if connection.answer.status != 200:
            self._check_busy()
        elif not connection.answer.refused:
            self._succeed()
        return self._received()

    async def whole(self, seconds: float, *, most: int = WHOLE_BYTES, counts: bool = True) -> Answer:
        """The complete answer; raises BadAnswer for one of more than `most` bytes, and for a stream of events.

        Of a long answer with another status than 200, the beginning. Its length may be the request's fault.
        `counts`: whether an answer of 500 and above counts as an error of the engine.
        """
        self.connection.set_timeout(seconds, self.deadline)
        await self._receive_head()
        connection = self.connection
        while not connection.answer.complete:
            answer = connection.answer
            if answer.size > _COUNTED_BYTES:
                if answer.status != 200 and answer.size > min(most, _ERROR_BYTES):
                    break
                if answer.framed:
                    raise self._odd("a stream instead of an answer")
                if answer.size > most:
                    raise self._odd(f"an answer of more than {most} bytes")
                self._hold()
            await connection.progress()
        self._observer.completed(self.endpoint)
        status = connection.answer.status
        if status != 200:
            self._check_busy()
            if status == _BUSY:
                self._check_ready(connection.answer.document)
        if status >= 500 and status != _BUSY and counts and not self.judged:
            self._observer.failed(self.endpoint, f"status {status}")
        elif status == 200:
            self._succeed()
        return self._received()

    def _odd(self, detail: str) -> BadAnswer:
        return BadAnswer(self.endpoint.name, detail, Reason.LOST, 502, b"")

    def _hold(self) -> None:
        """Count the answer so far; raise BadAnswer if unfinished answers of this engine take too much memory."""
        answer = self.connection.answer
        added, self._held = answer.size - self._held, answer.size
        if not self._pool.hold(self.endpoint.address, added):
            raise self._odd("too many large answers at the same time")

    def _check_busy(self) -> None:
        """Raise EngineBusy if the engine has answered how long it accepts no request."""
        answer = self.connection.answer
        seconds = retry_after(answer)
        if seconds:
            self._refused = False  # it gets no request for some time
            body = answer.document if answer.complete else b""
            if not self.judged:
                self._observer.busy(self.endpoint, seconds)
            raise EngineBusy(self.endpoint.name, seconds, answer.status, body, text=answer.text) from None

    def _check_ready(self, error: bytes) -> None:
        """Raise EngineUnready if the engine's error says that it accepts no request at all."""
        failure = unready(self.endpoint.name, error)
        if failure is not None:
            if not self.judged:
                self._observer.unready(self.endpoint, failure)
            raise failure from None

    def _succeed(self) -> None:
        self._observer.succeeded(self.endpoint)
        if self.reservation is not None:
            self._observer.counted(self.reservation)

    def _received(self) -> Answer:
        answer = self.connection.answer
        if not answer.complete:
            self.connection.set_timeout(inf)
        return answer

    def relay(self, sink: Sink, *, raw: bool) -> bytes:
        """Send the rest of the answer's body to `sink`; return the part that has arrived (see `Connection.relay`)."""
        if self._held:
            self._let_go()
        return self.connection.relay(sink, raw=raw)

    def _let_go(self) -> None:
        """The answer is relayed or no longer needed."""
        self._pool.hold(self.endpoint.address, -self._held)
        self._held = 0

    async def relayed(self, idle: float) -> None:
        """Wait until the relayed answer is complete. No part of it for `idle` seconds raises DeadlineExceeded."""
        connection = self.connection
        connection.watch_idle(idle, self.deadline)
        while not connection.answer.complete:
            await connection.progress()

    @property
    def source(self) -> str:
        """The name of its engine."""
        return self.endpoint.name

    @property
    def paused(self) -> bool:
        """Whether the client is slower than the engine."""
        return self.connection.paused

    @property
    def relayed_chunks(self) -> int:
        """Pieces of the answer that the sink has received."""
        return self.connection.chunks

    @property
    def last_chunk(self) -> bytes:
        """The piece relayed last."""
        return self.connection.last_chunk

    def pause(self) -> None:
        """Pause reading: the client is slower than the engine."""
        if self._slot is not None and not self._blocked:
            self._blocked = True
            self._slot.block()
        self.connection.pause()

    def resume(self) -> None:
        """Resume reading."""
        if self._slot is not None:
            self._unblock(self._slot)
        self.connection.resume()

    def outlive_request(self) -> None:
        """The request has ended, and its leg goes on: its deadline and failures from elsewhere end no wait."""
        self.deadline = inf
        self._interruption = None
        if self._connection is not None:
            self._connection.interrupt(None)

    def half_close(self) -> None:
        """Abandon the request: the engine stops, and an answer that is on its way is still received."""
        self._abandoned = True
        if self._connection is not None:
            self._connection.half_close()

    def interrupt(self, failure: Exception) -> None:
        """End the wait for the answer with an error from elsewhere, unless the engine has produced an output."""
        self._interruption = failure
        if self._connection is not None and not self._connection.answer.generates:
            self._connection.interrupt(failure)

    def give_back(self) -> None:
        """The exchange is over: the pool may reuse the connection. The leg stays counted until `end`."""
        if self._held:
            self._let_go()
        if self._connection is not None:
            self._pool.give(self._connection)
            self._connection = None

    def end(self) -> None:
        """Give the connection back and stop counting the leg. A connection with an incomplete answer is closed."""
        self.give_back()
        self._release()

    def _unblock(self, slot: Slot) -> None:
        if self._blocked:
            self._blocked = False
            slot.unblock()

    def _release(self) -> None:
        slot = self._slot
        if slot is not None:
            self._slot = None
            self._unblock(slot)
            if self.reservation is not None:
                self.reservation.dropped()
            if self.serves:
                slot.release(self._refused)
            else:
                slot.cancel()

    async def _receive_head(self) -> None:
        """Wait for the head. A request that met a connection which the engine was closing is sent once more.

        The loss must come at once, on a reused connection, before any byte of an answer, and the request must not be
        abandoned. A D that gets parameters of a hand-off gets them once: it could read KV a second time that may by
        then belong to another request, and answer 200 (vllm#52234).
        """
        connection = self.connection
        try:
            while not connection.answer.status:
                await connection.progress()
            connection.check()
            self._body = b""  # never sent again, and a stream may last long
            self._judge_refusal()
            return
        except LostConnection as failure:
            if not connection.used or connection.answer.status or self._abandoned or connection.lost is None:
                raise  # without `lost` the connection was interrupted
            if connection.since_sent > _STALE_SECONDS:
                raise
            if self._once:
                raise ClosedConnection(self.endpoint.name, failure.detail) from failure
        remaining = connection.remaining
        connection.close()
        self._connection = await self._pool.connect(self.endpoint.address, self.endpoint.name)
        if self._interruption is not None:
            raise self._interruption
        if self._abandoned:
            raise LostConnection(self.endpoint.name, "lost after the request was abandoned")
        self.connection.send(self._head, self._body)
        self._body = b""
        self.connection.set_timeout(remaining, self.deadline)
        await self.connection.head()
        self._judge_refusal()

    def _judge_refusal(self) -> None:
        """A 500 may come from the KV of the other engine of a hand-off: its owner finds out."""
        status = self.connection.answer.status
        self._refused = status != 200 and not (self.judged and status == 500)
