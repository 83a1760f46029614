"""Several gateways with more requests than a D can run, on a virtual clock: how many it runs and how many wait in it.

All requests take the same time, so those that began together end together, again and again.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator
from random import Random

import pytest

from pdx_api.names import Order, Role
from pdx_proxy.balancing.engine_limits import EngineSample, LimitEstimator, Work
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.config.settings import Address, EndpointSpec, Limits
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot

P = Endpoint(EndpointSpec(Address("p", 1), Role.PREFILL), warm_up_state=State.WARM)
D = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE, order=Order.PREFILL_FIRST), warm_up_state=State.WARM)
SNAPSHOT = Snapshot.of([P, D])
ANSWER = 10.0
"""Seconds of an answer."""


class Clock:
    """Runs what is due, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._count), action))

    def moments(self, until: float) -> Iterator[float]:
        while self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()
            yield self.now


class Engine:
    """Runs so many requests at a time; the others wait."""

    def __init__(self, clock: Clock, most: int, seconds: float) -> None:
        self._clock, self._most, self._seconds = clock, most, seconds
        self._queue: list[tuple[float, Callable[[], None]]] = []
        self.running = self.completed = 0
        self.durations = 0.0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def add(self, ended: Callable[[], None]) -> None:
        self._queue.append((self._clock.now, ended))
        self._begin()

    def sample(self) -> EngineSample:
        completed, seconds = self.completed, self.durations
        return EngineSample(self._clock.now, self.running, self.waiting, completed=completed, seconds=seconds)

    def _begin(self) -> None:
        while self._queue and self.running < self._most:
            came, ended = self._queue.pop(0)
            self.running += 1
            self._clock.after(self._seconds, lambda came=came, ended=ended: self._end(came, ended))  # type: ignore[misc]

    def _end(self, came: float, ended: Callable[[], None]) -> None:
        self.running -= 1
        self.completed += 1
        self.durations += self._clock.now - came
        self._begin()
        ended()


class Gateway:
    """Always has a request for an engine that is not at its limit. Reads the metrics as the gateway's scraper does."""

    def __init__(self, clock: Clock, p: Engine, d: Engine, random: Random) -> None:
        self._clock, self._p, self._d, self._random = clock, p, d, random
        self._estimators = {P.name: LimitEstimator(Work.PREFILL), D.name: LimitEstimator(Work.DECODE)}
        self._load = Load(clock=lambda: clock.now)
        clock.after(random.random(), self._poll)

    def _poll(self) -> None:
        samples = {P.name: self._p.sample(), D.name: self._d.sample()}
        limits = {name: self._estimators[name].update(sample) for name, sample in samples.items()}
        load = self._load
        load.limits = leg_limits(SNAPSHOT, LoadReports(limits=limits), Limits(), load.legs_at)
        self._send()
        soon = any(limit.grows for limit in limits.values())
        self._clock.after(0.1 if soon else self._random.uniform(0.8, 1.2), self._poll)

    def _send(self) -> None:
        load = self._load
        while load.limits and not load.full(P) and not load.full(D):
            load.acquire(P)
            load.acquire(D)
            load.begin_prefill(D)
            self._p.add(self._prefilled)

    def _prefilled(self) -> None:
        self._load.release(P)
        self._load.end_prefill(D)
        self._d.add(self._answered)
        self._send()

    def _answered(self) -> None:
        self._load.release(D)
        self._send()


@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize("prefill", [0.02, 0.1])
@pytest.mark.parametrize("most", [4, 64, 256])
def test_a_decode_runs_what_it_can_and_its_queue_stays_short(most: int, prefill: float, gateways: int) -> None:
    clock, random = Clock(), Random(most)
    p, d = Engine(clock, 512, prefill), Engine(clock, most, ANSWER)
    for _ in range(gateways):
        Gateway(clock, p, d, random)
    idle = longest = before = 0.0
    for now in clock.moments(75.0):
        if now > 45.0:  # a small D works for long on what it got while its limit rose
            idle += (most - d.running) * (now - before)
            longest = max(longest, d.waiting)
        before = now
    assert idle <= 0.05 * most * 30.0
    assert longest <= max(4, most / 10)
