"""PDX's gateway as a router: the gateway's own code chooses engines, limits their legs and estimates these limits.

`pick`, the policies, `Load`, `LimitEstimator` and `leg_limits` are those of `pdx_proxy.balancing`. What is repeated
here is only what the gateway performs around them: it counts legs, polls the engines' metrics every second
(`load_poller`), and keeps requests in the order of their arrival while no engine has room (`serving.attempts`,
`choose_with_room`).
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from benchmarks.goodput.engine import Engine
from benchmarks.goodput.simulation import Dispatch, Route
from benchmarks.goodput.traces import Request
from pdx_api.names import Role
from pdx_proxy.balancing.engine_limits import EngineSample, LimitEstimator, Work
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.pick import Choice, pick
from pdx_proxy.balancing.policies import LoadOf, Policy, affine, least, least_load, pressures
from pdx_proxy.config.settings import Address, EndpointSpec, Limits
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.load_poller import GROWING_SECONDS, PAUSE_SECONDS

_LEG_LIMITS: Final = Limits()


class Choosing(Protocol):
    """One policy of one role. Each worker has its own."""

    def policy(self, request: Request, now: float) -> Policy:
        """The policy for a request."""

    def reported(self, reports: LoadReports, endpoints: Sequence[Endpoint], load_of: LoadOf) -> None:
        """The engines' metrics have been read."""

    def sent(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """The request has been sent to an engine of this role."""

    def answered(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """The engine has finished the prefill; not called for a D of a split request."""

    def ended(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """The leg has ended."""


class Stateless:
    """The policies that keep no state of their own: LeastRequests here, others below."""

    def policy(self, request: Request, now: float) -> Policy:
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


class LeastLoad(Stateless):
    """The policy LeastLoad."""

    def __init__(self) -> None:
        self._policy: Policy = least

    def policy(self, request: Request, now: float) -> Policy:
        """See `Choosing`."""
        return self._policy

    def reported(self, reports: LoadReports, endpoints: Sequence[Endpoint], load_of: LoadOf) -> None:
        """Compare the reports with the load that is counted at this moment, as `Chooser.apply` does."""
        self._policy = least_load(pressures(endpoints, reports.engines, load_of))


class PrefixAffinity(Stateless):
    """The policy PrefixAffinity: the first block of a prompt stands for its first KiB, which makes the key."""

    def policy(self, request: Request, now: float) -> Policy:
        """See `Choosing`."""
        if not request.prefix:
            return least
        key = request.prefix[0][0] * 0x9E3779B1 & 0xFFFFFFFF
        return lambda endpoints, load_of, cursor: affine(endpoints, load_of, key)[0]


@dataclass(frozen=True, slots=True)
class Worker:
    """The policies of one worker."""

    prefill: Choosing
    decode: Choosing


class Gateway:
    """One gateway. Its workers share legs in flight and limits; each has its own policies and serves its requests."""

    def __init__(self, engines: Sequence[Engine], workers: Sequence[Worker], *, limits_prefill: bool = True) -> None:
        """`limits_prefill`: whether P's have limits of legs, as D's and aggregated engines always have."""
        self._engines = engines
        self._limits_prefill = limits_prefill
        self._workers = workers
        self._endpoints = tuple(_endpoint(engine) for engine in engines)
        self._index = {endpoint.name: index for index, endpoint in enumerate(self._endpoints)}
        self._snapshot = Snapshot.of(self._endpoints)
        self._load = Load(clock=lambda: 0.0)
        self._estimators = [LimitEstimator(_work(engine)) for engine in engines]
        self._queue: deque[Request] = deque()
        self._reports = LoadReports()
        self._cursor = 0

    def arrived(self, request: Request, now: float) -> Iterable[Dispatch]:
        """See `Router`; likewise the others."""
        self._queue.append(request)
        return self._serve(now)

    def answered(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """P's leg ends and D's begins; or a whole request has been prefilled."""
        worker = self._worker(request)
        decode = self._endpoints[route.decode]
        if route.prefill is None:
            worker.decode.answered(request, decode, now)
            return ()
        prefill = self._endpoints[route.prefill]
        worker.prefill.answered(request, prefill, now)
        worker.prefill.ended(request, prefill, now)
        self._load.release(prefill)
        self._load.acquire(decode)
        worker.decode.sent(request, decode, now)
        return self._serve(now)

    def ended(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """The leg of the engine that answers ends."""
        decode = self._endpoints[route.decode]
        self._load.release(decode)
        self._worker(request).decode.ended(request, decode, now)
        return self._serve(now)

    def polled(self, now: float) -> tuple[float, Iterable[Dispatch]]:
        """Read the engines' metrics: again in a second, or soon while requests wait for engines that may run more."""
        engines, limits = {}, {}
        for engine, endpoint, estimator in zip(self._engines, self._endpoints, self._estimators, strict=True):
            deferred = engine.scheduler.deferred
            engines[endpoint.name] = LoadReport(engine.running, engine.waiting, engine.kv_use)
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
        self._reports = LoadReports(engines, limits)
        self._load.limits = leg_limits(self._snapshot, self._reports, _LEG_LIMITS, self._load.legs_at)
        if not self._limits_prefill:
            for endpoint in self._snapshot.prefill:
                del self._load.limits[endpoint.name]
        for worker in self._workers:
            worker.prefill.reported(self._reports, self._snapshot.prefill, self._load.of)
            worker.decode.reported(self._reports, self._snapshot.decode, self._load.of)
        dispatches = list(self._serve(now))
        soon = bool(self._queue) and any(limit.grows for limit in limits.values())
        return GROWING_SECONDS if soon else PAUSE_SECONDS, dispatches

    def _worker(self, request: Request) -> Worker:
        """The worker that serves a request. A multiplication scatters the numbers, against patterns of the trace."""
        return self._workers[(request.index * 2654435761 >> 7) % len(self._workers)]

    def _serve(self, now: float) -> Iterable[Dispatch]:
        found: list[Dispatch] = []
        while self._queue and (choice := self._choice(self._queue[0], now)) is not None:
            found.append(self._send(self._queue.popleft(), choice, now))
        return found

    def _send(self, request: Request, choice: Choice, now: float) -> Dispatch:
        worker = self._worker(request)
        if choice.prefill is None:
            self._load.acquire(choice.decode)
            worker.decode.sent(request, choice.decode, now)
            return request, Route(self._index[choice.decode.name])
        self._load.acquire(choice.prefill)
        worker.prefill.sent(request, choice.prefill, now)
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
        worker = self._worker(request)
        return pick(
            self._snapshot,
            self._load.of,
            split=bool(self._snapshot.prefill),
            avoid=avoid,
            cursor=self._cursor,
            prefill=worker.prefill.policy(request, now),
            decode=worker.decode.policy(request, now),
        )


def _endpoint(engine: Engine) -> Endpoint:
    spec = EndpointSpec(Address("127.0.0.1", 8000 + engine.index), engine.role, pod=f"engine-{engine.index}")
    return Endpoint(spec, warm_up_state=State.WARM)


def _work(engine: Engine) -> Work:
    return Work.PREFILL if engine.role is Role.PREFILL else Work.DECODE
