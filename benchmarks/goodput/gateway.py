"""PDX's gateway as a router: the gateway's own code chooses engines, limits their legs and estimates these limits.

`pick`, the policies, `Load`, `LimitEstimator` and `leg_limits` are those of `pdx_proxy.balancing`. What is repeated
here is only what the gateway performs around them: it counts legs, polls the engines' metrics every second
(`engine_scraper`), and keeps requests in the order of their arrival while no engine has room (`serving.attempts`,
`choose_with_room`).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from benchmarks.goodput.engine import Engine
from benchmarks.goodput.simulation import Dispatch, Route
from benchmarks.goodput.traces import Request
from pdx_api.names import Policy as PolicyName
from pdx_api.names import Role
from pdx_proxy.balancing.decode.placement import Place
from pdx_proxy.balancing.engine_limits import EngineSample, LimitEstimator, Work
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.pick import Choice, pick
from pdx_proxy.balancing.policies import LoadOf, Policy, Pressure, affine, least, least_load, pressures
from pdx_proxy.config.settings import Address, EndpointSpec, Limits
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.engine_scraper import GROWING_SECONDS, PAUSE_SECONDS
from pdx_proxy.payload.body import Body

_LEG_LIMITS: Final = Limits()
_ANY: Final = Body()
Select = Callable[[Sequence[Endpoint], LoadOf, int], Endpoint]
"""Selects an engine for one request of the trace: see `Policy.choose`."""


class Choosing(Protocol):
    """One policy of one role. Each gateway has its own."""

    def select(self, request: Request, now: float) -> Select:
        """What selects an engine for a request."""

    def reported(self, reports: LoadReports, endpoints: Sequence[Endpoint], load_of: LoadOf) -> None:
        """The engines' metrics have been read."""

    def sent(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """The request has been sent to an engine of this role."""

    def answered(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """The engine has finished the prefill; not called for a D of a split request."""

    def ended(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """The leg has ended."""

    def bind(self, load: Load, snapshot: Snapshot, engines: Sequence[Engine]) -> None:
        """The gateway begins."""

    def polled(self, reports: LoadReports, now: float) -> Mapping[str, float]:
        """The engines' metrics have been read: return the limits of D's batches, by name."""

    def place(
        self, request: Request, waited: float, avoid: Collection[str], now: float
    ) -> tuple[Endpoint, Place] | None:
        """The D that prefills a request, and why; None if a P does."""

    def sent_split(self, request: Request, endpoint: Endpoint) -> None:
        """The request has been sent to a P, and D will get its KV."""

    def sent_whole(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """D gets the whole request."""


class _Selecting(Policy):
    """What selects an engine for one request, as a policy of the gateway."""

    def __init__(self, select: Select) -> None:
        super().__init__(PolicyName.LEAST_REQUESTS)
        self._select = select

    def choose(self, body: Body, endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        return self._select(endpoints, load_of, cursor)


class Stateless:
    """The policies that keep no state of their own: LeastRequests here, others below."""

    def select(self, request: Request, now: float) -> Select:
        """See `Choosing`; likewise the others."""
        return least

    def reported(self, reports: LoadReports, endpoints: Sequence[Endpoint], load_of: LoadOf) -> None:
        """Nothing."""

    def sent(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """Nothing."""

    def answered(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """Nothing."""

    def ended(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """Nothing."""

    def bind(self, load: Load, snapshot: Snapshot, engines: Sequence[Engine]) -> None:
        """Nothing."""

    def polled(self, reports: LoadReports, now: float) -> Mapping[str, float]:
        """No limit."""
        return {}

    def place(
        self, request: Request, waited: float, avoid: Collection[str], now: float
    ) -> tuple[Endpoint, Place] | None:
        """Always a P."""
        return None

    def sent_split(self, request: Request, endpoint: Endpoint) -> None:
        """Nothing."""

    def sent_whole(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """Nothing."""


class LeastLoad(Stateless):
    """The policy LeastLoad."""

    def __init__(self) -> None:
        self._pressures: Mapping[str, Pressure] = {}

    def select(self, request: Request, now: float) -> Select:
        """See `Choosing`."""
        return lambda endpoints, load_of, cursor: least_load(endpoints, load_of, cursor, self._pressures)

    def reported(self, reports: LoadReports, endpoints: Sequence[Endpoint], load_of: LoadOf) -> None:
        """Compare the reports with the load that is counted at this moment, as `Chooser.apply` does."""
        self._pressures = pressures(endpoints, reports.engines, load_of)


class PrefixAffinity(Stateless):
    """The policy PrefixAffinity: the first block of a prompt stands for its first KiB, which makes the key."""

    def select(self, request: Request, now: float) -> Select:
        """See `Choosing`."""
        if not request.prefix:
            return least
        key = request.prefix[0][0] * 0x9E3779B1 & 0xFFFFFFFF
        return lambda endpoints, load_of, cursor: affine(endpoints, load_of, key)[0]


class Gateway:
    """One gateway. Its workers share all that matters here, so their number does not."""

    def __init__(
        self, engines: Sequence[Engine], prefill: Choosing, decode: Choosing, *, lends: bool = False, above: int = 0
    ) -> None:
        """`lends`: whether P's lend each other what their limits of legs leave free.

        `above`: D alone serves prompts of at most so many tokens (`routing.disaggregateAboveTokens`).
        """
        self._engines = engines
        self._prefill = prefill
        self._decode = decode
        self._lends = lends
        self._above = above
        self._endpoints = tuple(_endpoint(engine) for engine in engines)
        self._index = {endpoint.name: index for index, endpoint in enumerate(self._endpoints)}
        self._snapshot = Snapshot.of(self._endpoints)
        self._now = 0.0
        self._load = Load(clock=lambda: self._now)
        self._estimators = [LimitEstimator(_work(engine)) for engine in engines]
        self._queue: deque[Request] = deque()
        self._reports = LoadReports()
        self._cursor = 0
        self._arrived: dict[int, float] = {}
        """When the requests of the queue came."""
        self.placed: list[tuple[float, Place]] = []
        """When D's got requests that a P could have prefilled, and why."""
        self._decode.bind(self._load, self._snapshot, engines)

    def arrived(self, request: Request, now: float) -> Iterable[Dispatch]:
        """See `Router`; likewise the others."""
        self._arrived[request.index] = now
        self._queue.append(request)
        return self._serve(now)

    def answered(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """P's leg ends and D's begins; or a whole request has been prefilled."""
        decode = self._endpoints[route.decode]
        if route.prefill is None:
            self._decode.answered(request, decode, now)
            return ()
        prefill = self._endpoints[route.prefill]
        self._prefill.answered(request, prefill, now)
        self._prefill.ended(request, prefill, now)
        self._load.release(prefill)
        self._load.acquire(decode)
        self._decode.sent(request, decode, now)
        return self._serve(now)

    def ended(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """The leg of the engine that answers ends."""
        decode = self._endpoints[route.decode]
        self._load.release(decode)
        self._decode.ended(request, decode, now)
        return self._serve(now)

    def polled(self, now: float) -> tuple[float, Iterable[Dispatch]]:
        """Read the engines' metrics: again in a second, or soon while requests wait for engines that may run more."""
        engines, limits = {}, {}
        for engine, endpoint, estimator in zip(self._engines, self._endpoints, self._estimators, strict=True):
            deferred = engine.scheduler.deferred
            engines[endpoint.name] = LoadReport(engine.running, engine.waiting, engine.kv_use, engine.tokens)
            sample = EngineSample(
                now,
                engine.running,
                engine.waiting - deferred,
                deferred,
                engine.kv_use,
                engine.completed,
                engine.latency,
            )
            limits[endpoint.name] = estimator.update(sample)
        self._now, self._reports = now, LoadReports(engines, limits)
        batches = self._decode.polled(self._reports, now)
        self._load.limits = leg_limits(self._snapshot, self._reports, _LEG_LIMITS, self._load.legs_at, batches)
        self._load.lend(self._snapshot.peers if self._lends else {})
        self._prefill.reported(self._reports, self._snapshot.prefill, self._load.of)
        self._decode.reported(self._reports, self._snapshot.decode, self._load.of)
        dispatches = list(self._serve(now))
        soon = bool(self._queue) and any(limit.grows for limit in limits.values())
        return GROWING_SECONDS if soon else PAUSE_SECONDS, dispatches

    def _serve(self, now: float) -> Iterable[Dispatch]:
        found: list[Dispatch] = []
        while self._queue and (choice := self._choice(self._queue[0], now)) is not None:
            found.append(self._send(self._queue.popleft(), choice, now))
        return found

    def _send(self, request: Request, choice: Choice, now: float) -> Dispatch:
        del self._arrived[request.index]
        if choice.place is not None:
            self.placed.append((now, choice.place))
        if choice.prefill is None:
            self._load.acquire(choice.decode)
            self._decode.sent(request, choice.decode, now)
            self._decode.sent_whole(request, choice.decode, now)
            return request, Route(self._index[choice.decode.name])
        self._load.acquire(choice.prefill)
        self._prefill.sent(request, choice.prefill, now)
        self._decode.sent_split(request, choice.decode)
        return request, Route(self._index[choice.decode.name], self._index[choice.prefill.name])

    def _choice(self, request: Request, now: float) -> Choice | None:
        """The engines of a request; None while they have no room (`choose_with_room`)."""
        choice = self._choose(request, (), now)
        if choice is None or self._has_room(choice):
            return choice
        full = {each.name for each in self._endpoints if self._load.full(each)}
        other = self._choose(request, full, now)
        fits = other is not None and self._has_room(other) and (other.prefill is None) == (choice.prefill is None)
        return other if fits else None

    def _has_room(self, choice: Choice) -> bool:
        return not self._load.full(choice.decode) and (choice.prefill is None or not self._load.full(choice.prefill))

    def _choose(self, request: Request, avoid: Collection[str], now: float) -> Choice | None:
        self._cursor += 1
        self._now = now
        placed = self._decode.place(request, now - self._arrived[request.index], avoid, now)
        if placed is not None:
            return Choice(placed[0], None, placed[1])
        return pick(
            self._snapshot,
            self._load.of,
            _ANY,
            split=bool(self._snapshot.prefill) and request.prompt > self._above,
            avoid=avoid,
            cursor=self._cursor,
            prefill=_Selecting(self._prefill.select(request, now)),
            decode=_Selecting(self._decode.select(request, now)),
        )


class Gateways:
    """Several gateways. Each serves some of the requests, and sees the others only in the engines' metrics."""

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        self._gateways = gateways

    def arrived(self, request: Request, now: float) -> Iterable[Dispatch]:
        """See `Router`; likewise the others."""
        return self._of(request).arrived(request, now)

    def answered(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """For the gateway of the request."""
        return self._of(request).answered(request, route, now)

    def ended(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """For the gateway of the request."""
        return self._of(request).ended(request, route, now)

    def polled(self, now: float) -> tuple[float, Iterable[Dispatch]]:
        """All read the engines' metrics."""
        polls = [gateway.polled(now) for gateway in self._gateways]
        return min(seconds for seconds, _ in polls), [each for _, dispatches in polls for each in dispatches]

    def _of(self, request: Request) -> Gateway:
        """The gateway of a request. A multiplication scatters the numbers, against patterns of the trace."""
        return self._gateways[(request.index * 2654435761 >> 7) % len(self._gateways)]


def _endpoint(engine: Engine) -> Endpoint:
    spec = EndpointSpec(Address("127.0.0.1", 8000 + engine.index), engine.role, pod=f"engine-{engine.index}")
    return Endpoint(spec, warm_up_state=State.WARM)


def _work(engine: Engine) -> Work:
    return Work.PREFILL if engine.role is Role.PREFILL else Work.DECODE
