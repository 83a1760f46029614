"""Admission: whether a request is served now, waits for its turn, or is shed.

One owner in each worker. What a request has of it is a `Permit`, taken once by `enter` and given back once by `leave`.
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
from pdx_proxy.payload.request import RefusedError
from pdx_proxy.telemetry.counters import Counters, Phase, ShedReason

_LONGEST_RETRY_AFTER: Final = 60
_RATE_MARKS: Final = 10
"""How many seconds of the past the rate of completions is taken from."""


class Verdict(Enum):
    """What becomes of a request that is not shed."""

    SERVE = auto()
    QUEUE = auto()


class ShedError(RefusedError):
    """The request is shed; the answer says when to come again."""

    def __init__(self, reason: ShedReason, retry_after: int) -> None:
        status, kind, message = _WORDS[reason]
        super().__init__(status, message, kind)
        self.reason = reason
        self.headers = {"retry-after": str(retry_after)}


_OVERLOADED: Final = (503, "ServiceUnavailableError")
_WORDS: Final[dict[ShedReason, tuple[int, str, str]]] = {
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
    held_bytes: int
    per_client: int
    """0 is no limit."""
    queue_seconds: float

    @classmethod
    def of(cls, limits: Limits, workers: int) -> "WorkerLimits":
        """Even parts. No limit that is one becomes none by being divided."""

        def part(total: int) -> int:
            return max(total // workers, 1) if total else 0

        return cls(
            in_flight_per_decode=limits.in_flight_per_decode / workers,
            queued=part(limits.queued_requests),
            held_bytes=part(limits.buffered_bytes),
            per_client=part(limits.requests_per_client),
            queue_seconds=limits.queue_seconds,
        )

    def capacity(self, engines: int) -> int:
        """Requests in flight with so many warm engines that answer clients; without any, those of one."""
        return max(int(self.in_flight_per_decode * max(engines, 1)), 1)


@dataclass(slots=True)
class Usage:
    """What one worker has taken on."""

    capacity: int
    """Most requests in flight."""
    in_flight: int = 0
    waiting: int = 0
    held: int = 0
    """Bytes of bodies, of all that wait and of those in flight that are not answered yet."""


_SERVE: Final = Verdict.SERVE
"""A plain name: looking a member up in its class takes longer than deciding."""
_WAITING, _SERVED, _OVER = "waiting", "served", "over"


def decide(share: WorkerLimits, usage: Usage, size: int, mine: int) -> Verdict | ShedReason:
    """What becomes of a request with a body of `size` bytes whose client has `mine` open ones.

    A body larger than all that may be held is taken when no other is held: it is bounded by itself.
    """
    if share.per_client and mine >= share.per_client:
        return ShedReason.CLIENT_LIMIT
    if usage.held and usage.held + size > share.held_bytes:
        return ShedReason.BYTES
    if usage.in_flight < usage.capacity and not usage.waiting:
        return _SERVE
    return Verdict.QUEUE if usage.waiting < share.queued else ShedReason.QUEUE_FULL


def retry_after(ahead: float, completed: int, seconds: float) -> int:
    """Whole seconds until `ahead` requests will have ended, when `completed` have in the last `seconds`.

    With none completed: as long as that has been so.
    """
    expected = ahead * seconds / completed if completed else seconds
    return max(1, min(math.ceil(expected), _LONGEST_RETRY_AFTER))


class Permit:
    """What one request has of its worker: a slot or a turn in the queue, and room for its body."""

    __slots__ = ("_admission", "client", "held", "state", "turn")

    def __init__(self, admission: "Admission", client: str | None, held: int) -> None:
        self._admission = admission
        self.client = client
        """Whose open requests it counts among; None where clients have no limit."""
        self.held = held
        """Bytes of its body."""
        self.state = _SERVED
        self.turn: asyncio.Future[bool] | None = None
        """Done when it is served (True) or has waited too long (False); None when it did not have to wait."""

    def grow(self, size: int) -> None:
        """Hold more bytes of a body whose length the head did not tell; raises ShedError."""
        self._admission.grow(self, size)

    def drop_body(self) -> None:
        """The body is not held any more."""
        if self.held:
            self._admission.usage.held -= self.held
            self.held = 0

    def leave(self) -> None:
        """The request is over, however it ended."""
        self._admission.leave(self)


class Admission:
    """Owner of one worker's slots and of its queue.

    Invariant: nobody waits while a slot is free.
    """

    def __init__(self, share: WorkerLimits, counters: Counters, clock: Callable[[], float]) -> None:
        self._share = share
        self._counters = counters
        self._clock = clock
        self._queue: OrderedDict[Permit, None] = OrderedDict()
        self._clients: dict[str, int] = {}
        """Open requests by client. Never zero."""
        self._completed = 0
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=_RATE_MARKS)
        """When so many had completed, at most one for each second in which somebody waited or was shed."""
        self.usage = Usage(share.capacity(0))

    def resize(self, engines: int) -> None:
        """So many warm engines answer clients now."""
        self.usage.capacity = self._share.capacity(engines)
        self._serve_next()

    def enter(self, exchange: Exchange, name: str | None) -> Permit:
        """A place for a request of the client with this name (None: the one at its address); raises ShedError.

        Where the place has a turn, `await_turn` comes next. `leave` comes last.
        """
        share, usage = self._share, self.usage
        size, client, mine = exchange.size, None, 0
        if share.per_client:
            client = f"key {name}" if name else exchange.peer
            mine = self._clients.get(client, 0)
        held = size or 0
        verdict = decide(share, usage, held, mine)
        if isinstance(verdict, ShedReason):
            raise self._shed(verdict, mine)
        permit = Permit(self, client, held)
        usage.held += held
        if client is not None:
            self._clients[client] = mine + 1
        if size is None:
            exchange.count_body(permit.grow)
        if verdict is _SERVE:
            usage.in_flight += 1
        else:
            self._enqueue(permit)
        return permit

    async def await_turn(self, permit: Permit) -> None:
        """Wait until a slot is free; raises ShedError when that takes too long."""
        assert permit.turn is not None, "only who was told to wait does"
        began = self._clock()
        timer = asyncio.get_running_loop().call_later(self._share.queue_seconds, self._time_out, permit)
        try:
            served = await permit.turn
        finally:
            timer.cancel()
            self._counters.phases[Phase.QUEUE].observe(self._clock() - began)
        if not served:
            raise self._shed(ShedReason.QUEUE_TIMEOUT, 0)

    def grow(self, permit: Permit, size: int) -> None:
        """See `Permit.grow`."""
        others = self.usage.held - permit.held
        if others and self.usage.held + size > self._share.held_bytes:
            raise self._shed(ShedReason.BYTES, 0)
        permit.held += size
        self.usage.held += size

    def leave(self, permit: Permit) -> None:
        """See `Permit.leave`."""
        state, permit.state = permit.state, _OVER
        if state is _OVER:
            return
        permit.drop_body()
        if permit.client is not None:
            self._forget(permit.client)
        if state is _WAITING:
            self._dequeue(permit)
            return
        self._completed += 1
        self.usage.in_flight -= 1
        if self._queue:
            self._serve_next()

    def _enqueue(self, permit: Permit) -> None:
        self._mark(self._clock())
        permit.state = _WAITING
        permit.turn = asyncio.get_running_loop().create_future()
        self._queue[permit] = None
        self.usage.waiting += 1
        self._counters.queued += 1

    def _dequeue(self, permit: Permit) -> None:
        del self._queue[permit]
        self.usage.waiting -= 1
        self._counters.queued -= 1

    def _serve_next(self) -> None:
        """Give free slots to those who wait, first come, first served."""
        while self._queue and self.usage.in_flight < self.usage.capacity:
            permit = next(iter(self._queue))
            self._dequeue(permit)
            self.usage.in_flight += 1
            permit.state = _SERVED
            assert permit.turn is not None, "who waits has a turn"
            if not permit.turn.done():  # else its client is just leaving, and the slot goes on with `leave`
                permit.turn.set_result(True)

    def _time_out(self, permit: Permit) -> None:
        assert permit.turn is not None, "who waits has a turn"
        if permit.state is _WAITING and not permit.turn.done():
            permit.turn.set_result(False)

    def _forget(self, client: str) -> None:
        left = self._clients[client] - 1
        if left:
            self._clients[client] = left
        else:
            del self._clients[client]

    def _shed(self, reason: ShedReason, mine: int) -> ShedError:
        """Who waits behind the queue needs all of it to be served; who has too many open, one of its own to end."""
        self._counters.sheds[reason] += 1
        now = self._clock()
        self._mark(now)
        then, completed = self._marks[0]
        ahead = self.usage.in_flight / mine if mine else self.usage.waiting + 1
        return ShedError(reason, retry_after(ahead, self._completed - completed, now - then))

    def _mark(self, now: float) -> None:
        if now - self._marks[-1][0] >= 1.0:
            if now - self._marks[-1][0] > _RATE_MARKS:
                self._marks.clear()
            self._marks.append((now, self._completed))
