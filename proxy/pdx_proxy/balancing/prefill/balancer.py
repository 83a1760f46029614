"""The policy ExpectedWait over endpoints: connects snapshots, load reports and legs of a worker with its state."""

from collections.abc import Sequence
from typing import Any, Final

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.policies import LoadOf, Policy
from pdx_proxy.balancing.prefill.backlog import PrefillEngine, PrefillLeg
from pdx_proxy.balancing.prefill.cache_watch import CacheWatch
from pdx_proxy.balancing.prefill.expected_wait import ExpectedWait
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.payload.request import Request

_PREFILL: Final = Role.PREFILL


class PrefillBalancer:
    """One worker's expected waits by endpoint."""

    __slots__ = ("_candidates", "_generations", "_load", "_of", "_watches", "_workers", "expected")

    def __init__(self, load: Load, workers: int = 1) -> None:
        """`workers` share each engine's cache: a worker fills its part of it."""
        self._load = load
        self._workers = workers
        self._generations: dict[str, int] = {}
        """The generation of each endpoint. What is learned in one does not hold in the next."""
        self._of: Sequence[Endpoint] = ()
        self._candidates: list[PrefillEngine] = []
        """The engines of `_of`, which is mostly the same for all requests between two snapshots."""
        self._watches: dict[str, CacheWatch] = {}
        self.expected = ExpectedWait()

    def apply(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Forget endpoints that are gone or have restarted, and set the sizes of caches."""
        generations = {e.name: e.generation for e in snapshot.everything}
        expected = self.expected
        for name, generation in self._generations.items():
            if generations.get(name) != generation:
                expected.forget(name)
        self._generations = generations
        self._of = ()
        self._watches = {name: watch for name, watch in self._watches.items() if name in expected.engines}
        for name, report in reports.engines.items():
            if name in generations:
                self._apply_report(expected.engine(name), name, report)

    def _apply_report(self, engine: PrefillEngine, name: str, report: LoadReport) -> None:
        if report.cache_tokens:
            engine.cache.resize(report.cache_tokens // self._workers)
        if report.cache_hits is not None:
            watch = self._watches.get(name)
            if watch is None:
                watch = self._watches[name] = CacheWatch()
            if watch.update(engine, report.cache_hits):
                engine.cache.clear()

    def policy_for(self, request: Request) -> Policy:
        """Return the policy for one request."""
        blocks = request.body.features.blocks

        def choose(endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
            if len(endpoints) == 1:
                return endpoints[0]
            load = self._load
            shares = self._shares(endpoints) if load.effective_loads else None
            sequences = None if endpoints[0].role is _PREFILL else [load_of(each) for each in endpoints]
            engines, now = self._engines(endpoints), load.clock()
            return endpoints[self.expected.choose(engines, blocks, now, cursor, shares, sequences)]

        return choose

    def sent(self, endpoint: Endpoint, request: Request, learns: bool) -> PrefillLeg:
        """Add a request's prompt to the backlog of an engine. `learns`: see `ExpectedWait.sent`."""
        expected = self.expected
        return expected.sent(expected.engine(endpoint.name), request.body.features.blocks, self._load.clock(), learns)

    def report(self) -> dict[str, Any]:
        """Return the state as JSON values that may be summed over workers; rates come with what to divide by."""
        now, expected = self._load.clock(), self.expected
        engines = expected.engines.items()
        rates = {name: round(rate, 1) for name, engine in engines if (rate := engine.rate(now))}
        return {
            "backlog": {name: engine.backlog for name, engine in engines},
            "rates": rates,
            "rated": dict.fromkeys(rates, 1),
            "tokens": {
                "cached": expected.cached_tokens,
                "computed": expected.prompt_tokens - expected.cached_tokens,
            },
        }

    def _engines(self, endpoints: Sequence[Endpoint]) -> list[PrefillEngine]:
        if endpoints is not self._of:
            self._candidates = [self.expected.engine(e.name) for e in endpoints]
            self._of = endpoints
        return self._candidates

    def _shares(self, endpoints: Sequence[Endpoint]) -> list[float]:
        """How much of its share each endpoint may get: less in slow start."""
        load = self._load
        return [(load.count(e) + 1) / (load.of(e) + 1) for e in endpoints]
