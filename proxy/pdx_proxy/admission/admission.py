"""Admission: whether a request is served now, waits in the queue, or is shed.

It has two stages. When the head has arrived, `acquire` only checks: it sheds early. Bytes of the body count as they
arrive. When the body is complete and no engine has room, `wait` puts the request into the queue, so the queue contains
complete requests only. One owner in each worker.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from pdx_proxy.admission.clients import client_address, parse_networks
from pdx_proxy.admission.drain_rate import DrainRate, seconds_until
from pdx_proxy.admission.fair_queue import FairQueue
from pdx_proxy.admission.permit import Permit
from pdx_proxy.admission.quarantine import is_majority
from pdx_proxy.admission.senders import Senders
from pdx_proxy.admission.usage import Usage
from pdx_proxy.config.settings import Limits
from pdx_proxy.http.downstream.exchange import Exchange
from pdx_proxy.http.errors import RefusedError
from pdx_proxy.telemetry.counters import Counters, Phase, ShedReason

POLL_SECONDS: Final = 0.005
"""How often a worker checks for room that another worker has freed, while requests wait."""
SMALL_BODY_BYTES: Final = 1 << 16
"""Larger bodies leave a part of the buffered bytes to smaller ones, which many slow senders could otherwise fill."""
_PART_FOR_SMALL: Final = 16
"""That part is the limit divided by this."""
_PATIENCE_SECONDS: Final = 0.05
"""After this time a worker takes room that another worker has a right to and does not take."""
_QUEUE: Final = Phase.QUEUE.value


class ShedError(RefusedError):
    """The request is shed; the answer has a `retry-after`."""

    def __init__(self, reason: ShedReason, retry_after: int) -> None:
        status, kind, message = _MESSAGES[reason]
        super().__init__(status, message, kind)
        self.reason = reason
        self.headers = {"retry-after": str(retry_after)}


_OVERLOADED: Final = (503, "ServiceUnavailableError")
_TOO_MANY: Final = (429, "RateLimitError")
_MESSAGES: Final[dict[ShedReason, tuple[int, str, str]]] = {
    ShedReason.QUEUE_FULL: (*_TOO_MANY, "The service is overloaded: its queue is full."),
    ShedReason.QUEUE_TIMEOUT: (*_OVERLOADED, "The service is overloaded: the request has waited too long."),
    ShedReason.BYTES: (*_OVERLOADED, "The service is overloaded: it holds too many request bodies."),
    ShedReason.CLIENT_LIMIT: (*_TOO_MANY, "You have too many open requests."),
}


class Releases(Protocol):
    """Reports that an engine that was full has room for one more request."""

    on_release: Callable[[], None] | None


class Waiter:
    """A request in the queue. Its owner defines what room it needs."""

    __slots__ = ("end", "permit")

    def __init__(self, permit: Permit) -> None:
        self.permit = permit
        self.end: asyncio.Future[ShedReason | None]
        """How the wait ended: None with room, otherwise shed. `Admission.wait` sets it."""

    def reserve(self) -> bool:
        """Keep room at engines for the request; False if they have none."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Free the room: the request does not use it."""
        raise NotImplementedError


class Admission:
    """Owner of one worker's queue.

    Invariant: no request waits while engines have room for it.
    """

    def __init__(
        self, limits: Limits, usage: Usage, releases: Releases, counters: Counters, clock: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._limits_clients = limits.max_requests_per_client > 0
        self._releases = releases
        self._counters = counters
        self._clock = clock
        self._trusted = parse_networks(limits.trusted_proxies)
        self._queue: FairQueue[Waiter] = FairQueue()
        self._drain = DrainRate()
        self._deadlines: deque[tuple[float, asyncio.Future[ShedReason | None]]] = deque()
        """When waits end, in seconds of the loop's clock. All waits are equally long, so they end in this order."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = self._on_release
        self._serving = False
        self._served_at = 0.0
        self._poll: asyncio.TimerHandle | None = None
        self._weights: Mapping[str, int] = {}
        self.usage = usage
        self.senders = Senders()

    def acquire(self, exchange: Exchange, name: str | None) -> Permit:
        """A permit for a request whose head has arrived; raises ShedError. Call its `release` last.

        `name`: of the client's API key. A body larger than the limit of buffered bytes is admitted when no other body
        is buffered.
        """
        limits, usage = self._limits, self.usage
        sample = self.senders.count()
        if sample and name is None:
            self.senders.count_address(self.client_of(exchange, None), sample)
        client: str | None = None
        if self._limits_clients:
            client = self.client_of(exchange, name)
            of_client = usage.open_of(client)
            if of_client >= limits.max_requests_per_client:
                raise self._shed_client(of_client)
        buffered, size = usage.all_buffered(), exchange.size or 0
        if buffered and buffered + size > self._most_buffered(size):
            raise self._shed(ShedReason.BYTES)
        if usage.waiting and usage.all_waiting() >= limits.max_requests:
            self._check_queue(exchange, name)
        permit = Permit(usage, exchange, name, client)
        exchange.count_body(self._counter(permit))
        return permit

    async def wait(self, waiter: Waiter, *, narrow: bool, tried: bool = False) -> float:
        """Wait until engines have room, which `waiter` then keeps, and return the seconds that it took.

        Raises ShedError when that takes too long. `narrow`: the request needs room at fewer engines than others do.
        `tried`: engines have no room for it at this moment.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        end = waiter.end = loop.create_future()
        began = self._clock()
        self._enqueue(waiter, narrow=narrow, tried=tried)
        self._limit_wait(loop, end)
        given_up = False
        try:
            shed = await end
        except asyncio.CancelledError:
            given_up = True
            if not end.cancelled() and end.result() is None:
                waiter.give_up()  # it had room, and its client left before it was used
            raise
        finally:
            if waiter in self._queue:
                self._queue.remove(waiter, given_up=given_up)
                self._update()
                self.serve_next()  # those behind it may fit where it did not
            waited = self._clock() - began
            self._counters.phases[_QUEUE].observe(waited)
        if shed is not None:
            raise self._shed(shed)
        return waited

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Set the weights of clients by the names of their API keys. A client that is absent has 1."""
        self._weights = weights

    def serve_next(self) -> None:
        """Serve queued requests that engines have room for, in fair order."""
        while self._queue and self._serve_one():
            pass

    def _on_release(self) -> None:
        """An engine that was full has room for one request."""
        if self._queue:
            self._serve_one()

    def _serve_one(self) -> bool:
        """Serve the first queued request that engines have room for; return whether there was one."""
        if self._serving or not self._may_take():
            return False  # to reserve and to give up end legs, which calls this again
        self._serving = True
        try:
            waiter = self._queue.pop(_reserve)
            while waiter is not None and waiter.end.done():
                waiter = self._queue.pop(_reserve)
            if waiter is not None:
                self._served_at = self._clock()
                waiter.permit.serve()
                waiter.end.set_result(None)
            self._update()
            return waiter is not None
        finally:
            self._serving = False

    def _limit_wait(self, loop: asyncio.AbstractEventLoop, end: "asyncio.Future[ShedReason | None]") -> None:
        """One timer for all waits: it runs when the first one of them has lasted too long."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1].done():
            deadlines.popleft()
        at = loop.time() + self._limits.max_wait_seconds
        deadlines.append((at, end))
        if self._timer is None:
            self._timer = loop.call_at(at, self._time_out, loop)

    def _time_out(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        deadlines, now = self._deadlines, loop.time()
        while deadlines and (deadlines[0][1].done() or deadlines[0][0] <= now):
            end = deadlines.popleft()[1]
            if not end.done():
                end.set_result(ShedReason.QUEUE_TIMEOUT)
        if deadlines:
            self._timer = loop.call_at(deadlines[0][0], self._time_out, loop)

    def _enqueue(self, waiter: Waiter, *, narrow: bool, tried: bool) -> None:
        exchange, name = waiter.permit.exchange, waiter.permit.name
        assert exchange is not None, "a request waits once, before it has a slot"
        if self.usage.all_waiting() >= self._limits.max_requests:
            crowded_out = self._check_queue(exchange, name)
            self._queue.remove(crowded_out)
            if not crowded_out.end.done():
                crowded_out.end.set_result(ShedReason.QUEUE_FULL)
        self._queue.push(waiter, self.client_of(exchange, name), self._weight(name), narrow=narrow)
        self._update()
        # Behind others, a request that needs as much as they do finds no room either.
        if not tried and (narrow or len(self._queue) == 1):
            self.serve_next()

    def _check_queue(self, exchange: Exchange, name: str | None) -> Waiter:
        """The request that leaves the full queue for one of this client; raises ShedError if there is none."""
        found = self._queue.crowded_out(self.client_of(exchange, name), self._weight(name))
        if found is None:
            raise self._shed(ShedReason.QUEUE_FULL)
        return found

    def _may_take(self) -> bool:
        return self.usage.may_take() or self._clock() - self._served_at > _PATIENCE_SECONDS

    def _update(self) -> None:
        """The queue has changed: count it, and be called when an engine has room as long as it is not empty."""
        waiting = len(self._queue)
        self._counters.queued = waiting
        self.usage.set_waiting(waiting, self._queue.clients)
        self._releases.on_release = self._wake if waiting else None
        if waiting and self._poll is None and self.usage.shared:
            self._poll = asyncio.get_running_loop().call_later(POLL_SECONDS, self._check_others)

    def _check_others(self) -> None:
        self._poll = None
        self.serve_next()
        if self._queue and self._poll is None:
            self._poll = asyncio.get_running_loop().call_later(POLL_SECONDS, self._check_others)

    def _counter(self, permit: Permit) -> Callable[[int], None]:
        """Return what counts bytes of a body that have arrived. It raises ShedError."""

        def count(size: int) -> None:
            buffered = self.usage.all_buffered()
            if buffered > permit.buffered and buffered + size > self._most_buffered(permit.buffered + size):
                raise self._shed(ShedReason.BYTES)
            permit.add_body(size)

        return count

    def _most_buffered(self, size: int) -> int:
        """Bytes of all bodies up to which one of this size may grow."""
        most = self._limits.buffered_bytes
        return most if size <= SMALL_BODY_BYTES else most - most // _PART_FOR_SMALL

    def client_of(self, exchange: Exchange, name: str | None) -> str:
        """Return the name of a request's client: its key's, else its address."""
        if name is not None:
            return f"key {name}"
        if not self._trusted:
            return exchange.peer
        forwarded = exchange.headers.get("x-forwarded-for", "")
        return client_address(exchange.peer, forwarded, self._trusted)

    def identify(self, exchange: Exchange, name: str | None) -> tuple[str, bool]:
        """Return the name of a request's client, and whether it is an address that stands for many clients."""
        client = self.client_of(exchange, name)
        if name is not None:
            return client, False
        requests, by_address = self.senders.counts()
        return client, not requests or is_majority(client, requests, by_address)

    def _weight(self, name: str | None) -> float:
        return self._weights.get(name, 1) if name is not None else 1.0

    def _shed(self, reason: ShedReason) -> ShedError:
        """The error, with a time at which the queue has room again."""
        self._counters.sheds[reason] += 1
        usage, drain = self.usage, self._drain
        drain.mark(usage.completed, usage.seconds)
        ahead = min(float(len(self._queue)), drain.rate(usage.in_flight) * self._last_wait())
        # A queue that is not full has room for a client that comes back before its turn, and engines never idle.
        early = self._limits.max_wait_seconds / 2 if reason is ShedReason.QUEUE_TIMEOUT else 0.0
        return ShedError(reason, drain.promise(self._clock(), usage.in_flight, ahead, early))

    def _last_wait(self) -> float:
        """Seconds for which the request that came last may still wait; those behind it come back in any case."""
        return max(0.0, self._deadlines[-1][0] - self._loop.time()) if self._deadlines and self._loop else 0.0

    def _shed_client(self, of_client: int) -> ShedError:
        """The error, with the time until one of the client's own requests ends."""
        self._counters.sheds[ShedReason.CLIENT_LIMIT] += 1
        usage = self.usage
        self._drain.mark(usage.completed, usage.seconds)
        rate = self._drain.rate(usage.in_flight)
        return ShedError(ShedReason.CLIENT_LIMIT, seconds_until(usage.in_flight / of_client / rate if rate else 1.0))


def _reserve(waiter: Waiter) -> bool:
    """Whether engines keep room for the request. One that waits no longer leaves the queue without any."""
    return waiter.end.done() or waiter.reserve()
