"""The simulation: requests of a trace, a router, engines, and the hand-off between them, as discrete events.

A split request is sent to its P when the router decides so, and to its D when P has answered (order PrefillFirst). D
takes the blocks of the prompt, reads what its own prefix cache has not over the links of both engines, and computes the
last token of the prompt again: that is the first token that the client sees. P keeps its blocks until D has read them.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Protocol

from benchmarks.goodput.engine import Engine, EngineModel
from benchmarks.goodput.traces import Request
from pdx_api.names import Role
from pdx_sim.core.scheduler import Work

NEVER = -1.0


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: indices into the engines."""

    decode: int
    """The engine that answers: a D or an aggregated engine."""
    prefill: int | None = None
    """Its P; None: the request is served whole."""


Dispatch = tuple[Request, Route]


class Router(Protocol):
    """Decides where requests go, and when. Each call returns the requests to send at this moment."""

    def arrived(self, request: Request, now: float) -> Iterable[Dispatch]:
        """A request has come."""

    def answered(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """P has answered, or a whole request has its first token."""

    def ended(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """The request has its last token."""

    def polled(self, now: float) -> tuple[float, Iterable[Dispatch]]:
        """Read the engines' metrics; return in how many seconds again, infinity for never."""


@dataclass(slots=True)
class Record:
    """What happened to one request. Times are seconds since the beginning, NEVER before they are set."""

    request: Request
    at: float
    sent: float = NEVER
    answered: float = NEVER
    """P has answered."""
    loading: float = NEVER
    """D has its blocks and its KV begins to move."""
    loaded: float = NEVER
    first: float = NEVER
    last: float = NEVER
    cached: int = 0
    """Prompt tokens that the engine that prefilled had in its prefix cache."""
    route: Route | None = None

    @property
    def ttft(self) -> float:
        """Seconds until the first token."""
        return self.first - self.at

    @property
    def tpot(self) -> float:
        """Seconds for each token after the first; 0 for a single one."""
        return (self.last - self.first) / (self.request.output - 1) if self.request.output > 1 else 0.0


class _Kind(IntEnum):
    """Kinds of events, in the order in which those of one moment are handled."""

    LOADED = auto()
    STEPS = auto()
    POLL = auto()
    REQUEST = auto()


@dataclass(frozen=True, slots=True)
class Layout:
    """The engines of a simulation."""

    prefill: int
    decode: int
    aggregated: int = 0

    def engines(self, model: EngineModel) -> tuple[Engine, ...]:
        """New engines: P's, then D's, then aggregated ones."""
        counts = ((Role.PREFILL, self.prefill), (Role.DECODE, self.decode), (Role.AGGREGATED, self.aggregated))
        roles = [role for role, count in counts for _ in range(count)]
        return tuple(Engine(index, role, model) for index, role in enumerate(roles))

    def __str__(self) -> str:
        return f"{self.aggregated} A" if self.aggregated else f"{self.prefill} P, {self.decode} D"


class Simulation:
    """Runs one trace through one router. Invariant: every request ends exactly once."""

    def __init__(self, engines: Sequence[Engine], router: Router, model: EngineModel) -> None:
        self._engines = engines
        self._router = router
        self._kv_bytes = model.kv_bytes_per_token
        self._events: list[tuple[float, int, int, object]] = []
        self._count = 0
        self._records: list[Record] = []
        self._by_work: dict[Work, Record] = {}
        self._left = 0

    def run(self, requests: Iterable[tuple[float, Request]]) -> list[Record]:
        """Pass all requests; return what happened to each, in the order of the trace."""
        coming = iter(requests)
        self._next_request(coming)
        self._put(0.0, _Kind.POLL, None)
        while self._events:
            now, kind, _, item = heapq.heappop(self._events)
            if kind == _Kind.STEPS:
                assert isinstance(item, Engine)
                if item.ends == now and not item.idle:
                    self._steps(item, now)
            elif kind == _Kind.LOADED:
                assert isinstance(item, Work)
                self._loaded(item, now)
            elif kind == _Kind.REQUEST:
                assert isinstance(item, Record)
                self._left += 1
                self._records.append(item)
                self._next_request(coming)
                self._send(self._router.arrived(item.request, now), now)
            elif self._left or self._events:
                seconds, dispatches = self._router.polled(now)
                self._send(dispatches, now)
                if seconds != float("inf"):
                    self._put(now + seconds, _Kind.POLL, None)
        assert not self._left, "a request was never sent or has never ended"
        return self._records

    def _next_request(self, coming: Iterable[tuple[float, Request]]) -> None:
        for at, request in coming:
            self._put(at, _Kind.REQUEST, Record(request, at))
            return

    def _put(self, at: float, kind: _Kind, item: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, kind, self._count, item))

    def _send(self, dispatches: Iterable[Dispatch], now: float) -> None:
        for request, route in dispatches:
            record = self._records[request.index]
            assert record.route is None, "a request was sent twice"
            record.route, record.sent = route, now
            whole = route.prefill is None
            engine = self._engines[route.decode if route.prefill is None else route.prefill]
            work = Work(str(request.index), request.prompt, request.output if whole else 1, prefix=request.prefix)
            self._add(engine, work, record, now)

    def _add(self, engine: Engine, work: Work, record: Record, now: float) -> None:
        self._by_work[work] = record
        engine.scheduler.add(work)
        self._wake(engine, now)

    def _wake(self, engine: Engine, now: float) -> None:
        """Let an engine plan now if it is idle, otherwise at the end of its step."""
        if engine.idle:
            self._plan(engine, now)
            return
        before = engine.ends
        engine.interrupt(now)
        if engine.ends != before:
            self._put(engine.ends, _Kind.STEPS, engine)

    def _plan(self, engine: Engine, now: float) -> None:
        for work in engine.plan(now):
            self._load(engine, work, now)
        if not engine.idle:
            self._put(engine.ends, _Kind.STEPS, engine)

    def _load(self, engine: Engine, work: Work, now: float) -> None:
        record = self._by_work[work]
        assert record.route is not None
        assert record.route.prefill is not None
        record.loading = now
        size = max(1, work.prompt - work.cached) * self._kv_bytes
        links = (self._engines[record.route.prefill].link, engine.link)
        self._put(max((link.reserve(size, now) for link in links if link is not None), default=now), _Kind.LOADED, work)

    def _loaded(self, work: Work, now: float) -> None:
        record = self._by_work[work]
        assert record.route is not None
        assert record.route.prefill is not None
        record.loaded = now
        prefill, decode = self._engines[record.route.prefill], self._engines[record.route.decode]
        prefill.pool.free(work.owner)
        self._wake(prefill, now)  # a request may wait for these blocks
        decode.scheduler.loaded(work, work.prompt)
        self._wake(decode, now)

    def _steps(self, engine: Engine, now: float) -> None:
        """Deliver what has passed, begin the next steps, and send what the router decides upon it."""
        progress = engine.finish()
        dispatches: list[Dispatch] = []
        for work, at in progress.first:
            dispatches += self._first(engine, work, at, now)
        for work in progress.done:
            dispatches += self._done(engine, work, now)
        self._plan(engine, now)
        self._send(dispatches, now)

    def _first(self, engine: Engine, work: Work, at: float, now: float) -> Iterable[Dispatch]:
        record = self._by_work[work]
        assert record.route is not None
        if record.route.decode == engine.index:
            record.first = at
        if record.route.prefill is not None:
            return ()
        record.cached = work.cached
        return self._router.answered(record.request, record.route, now)

    def _done(self, engine: Engine, work: Work, now: float) -> Iterable[Dispatch]:
        record = self._by_work.pop(work)
        request, route = record.request, record.route
        assert route is not None
        engine.completed += 1
        if route.prefill == engine.index:
            record.answered, record.cached = now, work.cached
            engine.latency += now - record.sent
            leg = Work(work.owner, request.prompt, request.output, loads=True, prefix=request.prefix)
            self._add(self._engines[route.decode], leg, record, now)
            return self._router.answered(request, route, now)
        assert record.last == NEVER, "a request has ended twice"
        engine.latency += now - (record.sent if route.prefill is None else record.answered)
        engine.pool.free(work.owner)
        record.last = now
        self._left -= 1
        return self._router.ended(request, route, now)
