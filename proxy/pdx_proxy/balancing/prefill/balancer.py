"""The policy ExpectedWait for endpoints: passes a worker's snapshots, load reports and legs to the policy's state."""

from collections.abc import Sequence
from typing import Any, Final

from pdx_api.names import Policy as PolicyName
from pdx_api.names import Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.policies import LoadOf, Needs, Policy
from pdx_proxy.balancing.prefill.backlog import PrefillEngine, PrefillLeg
from pdx_proxy.balancing.prefill.cache_watch import CacheWatch
from pdx_proxy.balancing.prefill.expected_wait import ExpectedWait
from pdx_proxy.balancing.prefill.shared_log import KEPT, EndRecord, SentRecord, SharedLog
from pdx_proxy.endpoints.endpoint import NO_SLOT, Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.prompt_blocks import PromptBlocks

_PREFILL: Final = Role.PREFILL


class PrefillBalancer(Policy):
    """One worker's expected waits by endpoint."""

    __slots__ = ("_candidates", "_generations", "_load", "_log", "_names", "_of", "_open", "_watches", "expected")

    def __init__(self, load: Load, log: SharedLog | None = None) -> None:
        """`log`: what the workers of a gateway share; None if there is only one."""
        super().__init__(PolicyName.EXPECTED_WAIT, Needs(backlog=True))
        self._load = load
        self._log = log
        self._generations: dict[str, int] = {}
        """The generation of each endpoint. What is learned in one does not hold in the next."""
        self._names: dict[int, str] = {}
        """The endpoints by slot."""
        self._of: Sequence[Endpoint] = ()
        self._candidates: list[PrefillEngine] = []
        """The engines of `_of`, which is mostly the same for all requests between two snapshots."""
        self._open: dict[int, dict[int, PrefillLeg]] = {}
        """The open legs of each other worker, by their numbers."""
        self._watches: dict[str, CacheWatch] = {}
        self.expected = ExpectedWait()

    def apply(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Forget endpoints that are gone or have restarted, and set the sizes of caches."""
        self._read_log()
        generations = {e.name: e.generation for e in snapshot.everything}
        expected = self.expected
        for name, generation in self._generations.items():
            if generations.get(name) != generation:
                expected.forget(name)
        self._generations = generations
        self._names = {e.slot: e.name for e in snapshot.everything if e.slot != NO_SLOT}
        expected.bound(_longest(snapshot, reports))
        self._of = ()
        self._watches = {name: watch for name, watch in self._watches.items() if name in expected.engines}
        for name, report in reports.engines.items():
            if name in generations:
                self._apply_report(expected.engine(name), name, report)

    def _apply_report(self, engine: PrefillEngine, name: str, report: LoadReport) -> None:
        if report.cache_tokens:
            engine.cache.resize(report.cache_tokens)
        if report.cache_hits is not None:
            watch = self._watches.get(name)
            if watch is None:
                watch = self._watches[name] = CacheWatch()
            if watch.update(engine, report.cache_hits):
                engine.cache.clear()

    def choose(self, body: Body, endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        if len(endpoints) == 1:
            return endpoints[0]
        self._read_log()
        load, blocks = self._load, body.features.blocks
        shares = self._shares(endpoints) if load.effective_loads or load.refusals else None
        refused = [load.has_refused(e) for e in endpoints] if load.refusals else None
        sequences = None if endpoints[0].role is _PREFILL else [load_of(e) for e in endpoints]
        engines, now = self._engines(endpoints), load.clock()
        return endpoints[self.expected.choose(engines, blocks, now, cursor, shares, sequences, refused)]

    def sent(self, endpoint: Endpoint, body: Body, learns: bool) -> PrefillLeg:
        """Add a request's prompt to the backlog of an engine. `learns`: see `ExpectedWait.sent`."""
        expected, blocks, now, log = self.expected, body.features.blocks, self._load.clock(), self._log
        leg = expected.sent(expected.engine(endpoint.name), blocks, now, learns)
        if log is not None and endpoint.slot != NO_SLOT:
            leg.log, leg.number = log, log.sent(endpoint.slot, blocks, now, learns)
        return leg

    def share_kept(self, endpoint: Endpoint, prompt: PromptBlocks, now: float) -> None:
        """An engine has got the KV of a prompt, which its cache keeps: the other workers read that."""
        if self._log is not None and endpoint.slot != NO_SLOT:
            self._log.keeps(endpoint.slot, prompt, now)

    def report(self) -> dict[str, Any]:
        """Return the state as JSON values that may be summed over workers; some come with what to divide by."""
        self._read_log()
        now, expected = self._load.clock(), self.expected
        engines = expected.engines.items()
        rates = {name: round(rate, 1) for name, engine in engines if (rate := engine.rate(now))}
        return {
            "backlog": {name: engine.backlog for name, engine in engines},
            "counted": dict.fromkeys(expected.engines, 1),
            "rates": rates,
            "rated": dict.fromkeys(rates, 1),
            "tokens": {
                "cached": expected.all.cached_tokens,
                "computed": expected.all.prompt_tokens - expected.all.cached_tokens,
            },
        }

    def _read_log(self) -> None:
        """Do what the other workers have done."""
        if self._log is None:
            return
        for writer, record in self._log.read():
            legs = self._open.setdefault(writer, {})
            if record is None:
                for leg in legs.values():
                    leg.dropped()
                legs.clear()
            elif isinstance(record, SentRecord):
                name = self._names.get(record.slot)
                if name is not None:
                    engine = self.expected.engine(name)
                    if record.number == KEPT:
                        engine.cache.touch(record.prompt, engine.longest)
                    else:
                        leg = self.expected.received(engine, record.prompt, record.at, record.learns)
                        legs[record.number] = leg
            else:
                self._end(legs.pop(record.number, None), record)

    def _end(self, leg: PrefillLeg | None, record: EndRecord) -> None:
        if leg is None:
            return
        if record.answered_at is None:
            leg.dropped()
        else:
            leg.answered(record.answered_at)

    def _engines(self, endpoints: Sequence[Endpoint]) -> list[PrefillEngine]:
        if endpoints is not self._of:
            self._candidates = [self.expected.engine(e.name) for e in endpoints]
            self._of = endpoints
        return self._candidates

    def _shares(self, endpoints: Sequence[Endpoint]) -> list[float]:
        """How much of its share each endpoint may get: less in slow start, or after it has refused requests."""
        load = self._load
        return [(load.count(e) + 1) / (load.of(e) + 1) for e in endpoints]


def _longest(snapshot: Snapshot, reports: LoadReports) -> dict[str, int]:
    """Return the most tokens of a prompt at each endpoint, by name: of its longest model, and of its cache."""
    found: dict[str, int] = {}
    for endpoint in snapshot.everything:
        report = reports.engines.get(endpoint.name)
        bounds = [max((model.longest for model in endpoint.models), default=0), report.cache_tokens if report else 0]
        known = [bound for bound in bounds if bound]
        if known:
            found[endpoint.name] = min(known)
    return found
