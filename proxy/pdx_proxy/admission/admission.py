"""Admission: whether a request is served now, waits in the queue, or is shed.

One owner in each worker. A request acquires one `Permit` and releases it once.
"""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pdx_proxy.config.settings import Limits
from pdx_proxy.http.downstream.exchange import Exchange
from pdx_proxy.http.errors import RefusedError
from pdx_proxy.telemetry.counters import Counters, Phase, ShedReason

_LONGEST_RETRY_AFTER: Final = 60
_RATE_MARKS: Final = 10
"""How many of the last seconds the rate of completed requests is computed from."""


class Verdict(Enum):
    """The decision about a request that is not shed."""

    SERVE = auto()
    QUEUE = auto()


class ShedError(RefusedError):
    """The request is shed; the answer has a `retry-after`."""

    def __init__(self, reason: ShedReason, retry_after: int) -> None:
        status, kind, message = _MESSAGES[reason]
        super().__init__(status, message, kind)
        self.reason = reason
        self.headers = {"retry-after": str(retry_after)}


_OVERLOADED: Final = (503, "ServiceUnavailableError")
_MESSAGES: Final[dict[ShedReason, tuple[int, str, str]]] = {
    ShedReason.QUEUE_FULL: (*_OVERLOADED, "The service is overloaded: its queue is full."),
    ShedReason.QUEUE_TIMEOUT: (*_OVERLOADED, "The service is overloaded: the request has waited too long."),
    ShedReason.BYTES: (*_OVERLOADED, "The service is overloaded: it holds too many request bodies."),
    ShedReason.CLIENT_LIMIT: (429, "RateLimitError", "You have too many open requests."),
}


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """One worker's part of the gateway's limits."""

    in_flight_per_decode: float
    queued: int
    buffered_bytes: int
    per_client: int
    """0: no limit."""
    queue_seconds: float

    @classmethod
    def of(cls, limits: Limits, workers: int) -> "WorkerLimits":
        """An even part for each worker. A part is at least 1, because 0 would mean no limit."""

        def part(total: int) -> int:
            return max(total // workers, 1) if total else 0

        return cls(
            in_flight_per_decode=limits.in_flight_per_decode / workers,
            queued=part(limits.queued_requests),
            buffered_bytes=part(limits.buffered_bytes),
            per_client=part(limits.requests_per_client),
            queue_seconds=limits.queue_seconds,
        )

    def capacity(self, engines: int) -> int:
        """Most requests in flight with this number of warm engines that answer clients; without any, as with one."""
        return max(int(self.in_flight_per_decode * max(engines, 1)), 1)


@dataclass(slots=True)
class Usage:
    """What one worker has admitted."""

    capacity: int
    """Most requests in flight."""
    in_flight: int = 0
    waiting: int = 0
    buffered: int = 0
    """Bytes of bodies: of requests in the queue, and of requests in flight whose answer has not begun."""


_SERVE: Final = Verdict.SERVE
"""A plain name: the lookup of an enum member in its class takes longer than the decision."""
_READING, _QUEUED, _SERVED, _RELEASED = "reading", "queued", "served", "released"


def decide(limits: WorkerLimits, usage: Usage, size: int, of_client: int) -> Verdict | ShedReason:
    """Decide, at its head, about a request with a body of `size` bytes whose client has `of_client` open requests.

    A body larger than the limit of buffered bytes is admitted when no other body is buffered.
    """
    if limits.per_client and of_client >= limits.per_client:
        return ShedReason.CLIENT_LIMIT
    if usage.buffered and usage.buffered + size > limits.buffered_bytes:
        return ShedReason.BYTES
    return decide_slot(limits, usage)


def decide_slot(limits: WorkerLimits, usage: Usage) -> Verdict | ShedReason:
    """Decide about a request whose body is complete."""
    if usage.in_flight < usage.capacity and not usage.waiting:
        return _SERVE
    return Verdict.QUEUE if usage.waiting < limits.queued else ShedReason.QUEUE_FULL


def retry_after(ahead: float, completed: int, seconds: float) -> int:
    """Whole seconds until `ahead` more requests complete, if `completed` did so in the last `seconds`.

    If none did, `seconds` itself.
    """
    expected = ahead * seconds / completed if completed else seconds
    return max(1, min(math.ceil(expected), _LONGEST_RETRY_AFTER))


class Permit:
    """What one request holds of its worker: room for its body, and, once that is complete, a slot or a queue place."""

    __slots__ = ("_admission", "admitted", "buffered", "client", "state")

    def __init__(self, admission: "Admission", client: str | None) -> None:
        self._admission = admission
        self.client = client
        """The client whose open requests include this one; None without a limit for clients."""
        self.buffered = 0
        """Bytes of its body that are buffered."""
        self.state = _READING
        self.admitted: asyncio.Future[bool] | None = None
        """True when a slot becomes free, False when the wait is too long; None for a request that did not wait."""

    def grow(self, size: int) -> None:
        """Count bytes of the body that have arrived; raises ShedError."""
        self._admission.grow(self, size)

    def drop_body(self) -> None:
        """The body is no longer buffered."""
        if self.buffered:
            self._admission.usage.buffered -= self.buffered
            self.buffered = 0

    def release(self) -> None:
        """The request has ended, in any way."""
        self._admission.release(self)


class Admission:
    """Owner of one worker's slots and of its queue.

    Invariant: no request waits while a slot is free.
    """

    def __init__(self, limits: WorkerLimits, counters: Counters, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._counters = counters
        self._clock = clock
        self._queue: OrderedDict[Permit, None] = OrderedDict()
        self._clients: dict[str, int] = {}
        """Open requests by client. Never zero."""
        self._completed = 0
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=_RATE_MARKS)
        """Times and completed requests: at most one entry per second, when a request is queued or shed."""
        self.usage = Usage(limits.capacity(0))

    def resize(self, engines: int) -> None:
        """Set the number of warm engines that answer clients."""
        self.usage.capacity = self._limits.capacity(engines)
        self._serve_next()

    def acquire(self, exchange: Exchange, name: str | None) -> Permit:
        """A permit for a request of the client with this name (None: of its address); raises ShedError.

        It counts the bytes of the body as they arrive. Call `take_slot` when the body is complete, and `release` last.
        """
        limits, usage = self._limits, self.usage
        size, client, of_client = exchange.size, None, 0
        if limits.per_client:
            client = f"key {name}" if name else exchange.peer
            of_client = self._clients.get(client, 0)
        verdict = decide(limits, usage, size or 0, of_client)
        if isinstance(verdict, ShedReason):
            raise self._shed(verdict, of_client)
        permit = Permit(self, client)
        if client is not None:
            self._clients[client] = of_client + 1
        if size != 0:
            exchange.count_body(permit.grow)
        return permit

    def take_slot(self, permit: Permit) -> None:
        """Give a request whose body is complete a slot or a place in the queue; raises ShedError.

        If the permit then has `admitted`, call `wait_in_queue` next.
        """
        verdict = decide_slot(self._limits, self.usage)
        if verdict is _SERVE:
            permit.state = _SERVED
            self.usage.in_flight += 1
        elif isinstance(verdict, ShedReason):
            raise self._shed(verdict, 0)
        else:
            self._enqueue(permit)

    async def wait_in_queue(self, permit: Permit) -> None:
        """Wait for a slot; raises ShedError when that takes too long."""
        assert permit.admitted is not None, "the request is queued"
        began = self._clock()
        timer = asyncio.get_running_loop().call_later(self._limits.queue_seconds, self._time_out, permit)
        try:
            served = await permit.admitted
        finally:
            timer.cancel()
            self._counters.phases[Phase.QUEUE].observe(self._clock() - began)
        if not served:
            raise self._shed(ShedReason.QUEUE_TIMEOUT, 0)

    def grow(self, permit: Permit, size: int) -> None:
        """See `Permit.grow`."""
        others = self.usage.buffered - permit.buffered
        if others and self.usage.buffered + size > self._limits.buffered_bytes:
            raise self._shed(ShedReason.BYTES, 0)
        permit.buffered += size
        self.usage.buffered += size

    def release(self, permit: Permit) -> None:
        """See `Permit.release`."""
        state, permit.state = permit.state, _RELEASED
        if state is _RELEASED:
            return
        permit.drop_body()
        if permit.client is not None:
            self._forget(permit.client)
        if state is _READING:
            return
        if state is _QUEUED:
            self._dequeue(permit)
            return
        self._completed += 1
        self.usage.in_flight -= 1
        if self._queue:
            self._serve_next()

    def _enqueue(self, permit: Permit) -> None:
        self._mark(self._clock())
        permit.state = _QUEUED
        permit.admitted = asyncio.get_running_loop().create_future()
        self._queue[permit] = None
        self.usage.waiting += 1
        self._counters.queued += 1

    def _dequeue(self, permit: Permit) -> None:
        del self._queue[permit]
        self.usage.waiting -= 1
        self._counters.queued -= 1

    def _serve_next(self) -> None:
        """Give free slots to queued requests, first come, first served."""
        while self._queue and self.usage.in_flight < self.usage.capacity:
            permit = next(iter(self._queue))
            self._dequeue(permit)
            self.usage.in_flight += 1
            permit.state = _SERVED
            assert permit.admitted is not None, "the request is queued"
            if not permit.admitted.done():  # otherwise its client has just left, and `release` frees the slot
                permit.admitted.set_result(True)

    def _time_out(self, permit: Permit) -> None:
        assert permit.admitted is not None, "the request is queued"
        if permit.state is _QUEUED and not permit.admitted.done():
            permit.admitted.set_result(False)

    def _forget(self, client: str) -> None:
        remaining = self._clients[client] - 1
        if remaining:
            self._clients[client] = remaining
        else:
            del self._clients[client]

    def _shed(self, reason: ShedReason, of_client: int) -> ShedError:
        """The error, with the time until a repeated request is admitted.

        With a full queue that is the time to empty it, above a client's limit the time until one of its requests ends.
        """
        self._counters.sheds[reason] += 1
        now = self._clock()
        self._mark(now)
        then, completed = self._marks[0]
        ahead = self.usage.in_flight / of_client if of_client else self.usage.waiting + 1
        return ShedError(reason, retry_after(ahead, self._completed - completed, now - then))

    def _mark(self, now: float) -> None:
        if now - self._marks[-1][0] >= 1.0:
            if now - self._marks[-1][0] > _RATE_MARKS:
                self._marks.clear()
            self._marks.append((now, self._completed))
