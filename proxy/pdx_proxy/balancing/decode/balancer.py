"""The policy LeastITL for endpoints: passes snapshots, load reports and open streams to the modules that decide."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

from pdx_api.names import Policy as PolicyName
from pdx_api.names import Role
from pdx_proxy.balancing.decode.itl import CommonSlope, EngineITL, Line, common_line
from pdx_proxy.balancing.decode.kept_prompts import FEW, KeptPrompts
from pdx_proxy.balancing.decode.measurement import EngineCounts, Measurement, measured
from pdx_proxy.balancing.decode.placement import (
    Candidate,
    Place,
    PrefillShare,
    PrefillWait,
    Targets,
    batch_limit,
    place,
)
from pdx_proxy.balancing.decode.reservations import SplitPrompt, WholePrompt
from pdx_proxy.balancing.decode.streams import StreamMeter
from pdx_proxy.balancing.decode.view import FREE_KV, DecodeView, least_itl
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.policies import LoadOf, Needs, Policy, least
from pdx_proxy.balancing.prefill.backlog import PrefillEngine, PrefillLeg, Reservation
from pdx_proxy.balancing.prefill.balancer import PrefillBalancer
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.prompt_blocks import PromptBlocks
from pdx_proxy.telemetry.counters import Relay

EQUAL: Final = 0.15
"""Engines whose ITL differs by less are equal: what they show of themselves varies that much."""
_USUAL_KV: Final = 0.6
"""Use of the KV cache up to which every request finds room, so that its size need not be estimated."""
_PROMPT_CACHE: Final = 0.8
"""Part of a D's KV cache that keeps prompts, about. The rest has answers, and prompts that are not finished."""
_MOST_PREFILL: Final = 0.7
"""With a larger share of prefills, a time shows nothing about decoding."""
_USUAL_ANSWER: Final = 256.0
"""Tokens of an answer while no engine has reported any."""
_BODY_BYTES: Final = 4
"""Bytes of a body per token, where no policy needs the prompt's tokens."""
_DECODE: Final = Role.DECODE
_NO_VIEWS: Final[Mapping[str, DecodeView]] = {}


class DecodeBalancer(Policy):
    """One worker's view of the engines that answer. Its decisions read `_views`, which each report replaces."""

    __slots__ = (
        "_answer_tokens",
        "_counts",
        "_engines",
        "_generations",
        "_kept",
        "_learned_at",
        "_load",
        "_longest",
        "_meter",
        "_prefill_rate",
        "_prefills",
        "_shares",
        "_slope",
        "_varies",
        "_views",
        "_workers",
        "handoff",
        "slo",
    )

    def __init__(self, load: Load, prefills: PrefillBalancer, slo: Targets, workers: int = 1) -> None:
        super().__init__(PolicyName.LEAST_ITL, Needs(kept=True))
        self._load = load
        self._prefills = prefills
        self._workers = workers
        self._generations: dict[str, int] = {}
        """The generation of each engine. What is learned in one does not hold in the next."""
        self._kept = KeptPrompts()
        self._slope = CommonSlope()
        self._engines: dict[str, EngineITL] = {}
        self._counts: dict[str, EngineCounts] = {}
        """The engines' own counters at the last report."""
        self._shares: dict[str, PrefillShare] = {}
        self._meter = StreamMeter()
        self._views: Mapping[str, DecodeView] = {}
        """Of all engines in force, or empty while nothing is learned."""
        self._learned_at = 0.0
        """When the last reports came."""
        self._varies = False
        """Whether the engines differ, or one is short of KV. Otherwise the fewest requests are the least ITL."""
        self._answer_tokens = _USUAL_ANSWER
        self._longest = inf
        """The most tokens of a request that an engine accepts."""
        self._prefill_rate = 0.0
        """Tokens per second of the P that finished the last prompt first."""
        self.handoff = 0.0
        """Seconds from P's answer to the first event of D's."""
        self.slo = slo

    def apply(self, snapshot: Snapshot, reports: LoadReports) -> None:
        """Put a snapshot in force: forget engines that are gone or have restarted."""
        generations = {e.name: e.generation for e in snapshot.decode}
        if generations != self._generations:
            for name in [name for name, generation in self._generations.items() if generations.get(name) != generation]:
                for found in (self._engines, self._counts, self._shares):
                    found.pop(name, None)
            self._generations = generations
        self._see(snapshot.decode, reports)

    def apply_load(self, snapshot: Snapshot, reports: LoadReports, streams: Iterable[Relay]) -> None:
        """Learn from what has passed since the last reports: how the open streams went on, and what engines counted."""
        now = self._load.clock()
        seconds, self._learned_at = now - self._learned_at, now
        progress = self._meter.update(streams, now)
        for endpoint in snapshot.decode:
            name, report = endpoint.name, reports.engines.get(endpoint.name)
            batch = report.running if report is not None else float(self._load.count(endpoint))
            before, counts = self._counts.get(name), EngineCounts(batch, report)
            self._counts[name] = counts
            found = measured(progress.get(name), before, counts)
            limit = reports.limits.get(name)
            share = self._share(name)
            share.measure(limit.latency if limit is not None else 0.0)
            if report is not None and report.cache_tokens:
                self._prefills.expected.engine(name).cache.resize(int(_PROMPT_CACHE * report.cache_tokens))
            prefilled = self._prefilled(name, share, now)
            if found is not None:
                self._learn(name, found, prefilled / seconds if seconds > 0.0 else 0.0, now)
        self._see(snapshot.decode, reports)

    def choose(self, body: Body, endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
        if len(endpoints) == 1:
            return endpoints[0]
        blocks = body.features.blocks
        if self._varies:
            missing = self._missing(endpoints, blocks)
            return least_itl(endpoints, load_of, cursor, self._views, self._tokens(body), missing)
        if blocks.tokens < FEW:
            return least(endpoints, load_of, cursor)
        return least_itl(endpoints, load_of, cursor, _NO_VIEWS, 0.0, self._missing(endpoints, blocks))

    def batch_limits(self) -> dict[str, float]:
        """Return the batch of each D with which its streams keep the TPOT objective; absent: no limit."""
        limits: dict[str, float] = {}
        tpot, now = self.slo.tpot, self._load.clock()
        if tpot <= 0.0 or not self._slope.learned:
            return limits
        for name, engine in self._engines.items():
            if engine.measured:
                line = engine.line()
                share = self._shares[name].at(now) if name in self._shares else 0.0
                limit = batch_limit(line.base, line.slope, share, tpot)
                if limit is not None:
                    limits[name] = limit
        return limits

    def place(
        self, snapshot: Snapshot, body: Body, waited: float, avoid: Collection[str]
    ) -> tuple[Endpoint, Place] | None:
        """Return the D that prefills a request which could be split, and why; None if a P does.

        `waited`: seconds since the request was read.
        """
        views, now = self._views, self._load.clock()
        if not views or not snapshot.peers:
            return None
        prefill = self._prefill_wait(snapshot.prefill, body, now)
        if prefill is None:
            return None
        decodes = [d for d in snapshot.decode if d.role is _DECODE and d.name not in avoid and not self._load.full(d)]
        tokens = self._tokens(body)
        fits = [d for d in decodes if views[d.name].kv_share(self._load.of(d), tokens) <= 1.0 - FREE_KV]
        candidates = [self._candidate(d, body, now) for d in fits]
        found = place(candidates, prefill, waited, self.slo, now)
        return None if found is None else (fits[found[0]], found[1])

    def sent_whole(self, endpoint: Endpoint, leg: PrefillLeg) -> Reservation:
        """A D has got a whole request, which it prefills."""
        seconds = self._cost(self._prefills.expected.engine(endpoint.name), leg.tokens, leg.sent_at)
        return WholePrompt(leg, self._share(endpoint.name), self._workers * seconds)

    def sent_split(self, endpoint: Endpoint, body: Body) -> Reservation:
        """A D gets the KV of a prompt, which it keeps in its prefix cache too."""
        return SplitPrompt(self._prefills, self._kept, endpoint, body.features.blocks)

    def report(self) -> dict[str, Any]:
        """Return the state as JSON values that may be summed over workers, with what to divide by."""
        itl = {
            name: round(engine.line().at(self._counts[name].batch), 6)
            for name, engine in self._engines.items()
            if engine.measured and name in self._counts
        }
        batches = {name: round(limit, 1) for name, limit in self.batch_limits().items()}
        return {"itl": itl, "measured": dict.fromkeys(itl, 1), "batches": batches, "limited": dict.fromkeys(batches, 1)}

    def _missing(self, endpoints: Sequence[Endpoint], blocks: PromptBlocks) -> list[float] | None:
        if blocks.tokens < FEW:
            return None
        engine = self._prefills.expected.engine
        return self._kept.missing([engine(each.name) for each in endpoints], blocks)

    def _prefilled(self, name: str, share: PrefillShare, now: float) -> float:
        """The seconds that a D has prefilled since the last reports."""
        engine = self._prefills.expected.engines.get(name)
        return share.worked(0.0 if engine is None else self._cost(engine, engine.backlog, now))

    def _cost(self, engine: PrefillEngine, tokens: int, now: float) -> float:
        """The seconds that the streams of a D lose by a prefill.

        They go on in the steps that prefill, so it is less than the prefill takes: about as much as at a P.
        """
        rate = max(engine.rate(now), self._prefill_rate)
        return tokens / rate if rate > 0.0 else 0.0

    def _learn(self, name: str, found: Measurement, share: float, now: float) -> None:
        """Learn from a time of which prefills took a share. What is left shows less, the larger that share is."""
        if share >= _MOST_PREFILL:
            return
        engine = self._engines.get(name)
        if engine is None:
            engine = self._engines[name] = EngineITL(self._slope)
        engine.add(found.batch, found.itl * (1.0 - share), found.tokens * (1.0 - share), now)

    def _see(self, decodes: Sequence[Endpoint], reports: LoadReports) -> None:
        """Replace the views."""
        self._varies = False
        self._views = {}
        engines = self._prefills.expected.engines
        self._longest = max((engines[d.name].longest for d in decodes if d.name in engines), default=inf)
        answers = [report.answer_tokens for d in decodes if (report := reports.engines.get(d.name)) is not None]
        answers = [tokens for tokens in answers if tokens > 0.0]
        self._answer_tokens = sum(answers) / len(answers) if answers else _USUAL_ANSWER
        if not self._slope.learned:
            return
        lines = {d.name: e.line() for d in decodes if (e := self._engines.get(d.name)) is not None and e.measured}
        if not lines:
            return
        batch = sum(self._counts[name].batch for name in lines) / len(lines) + 1.0
        common, now = common_line(list(lines.values()), batch), self._load.clock()
        views = {}
        for endpoint in decodes:
            name, report = endpoint.name, reports.engines.get(endpoint.name)
            line, stale = lines.get(name, common), False
            if abs(line.at(batch) / common.at(batch) - 1.0) <= EQUAL:
                line = common
            else:
                self._varies, stale = True, self._engines[name].stale(now)
            if report is not None and report.kv_use > _USUAL_KV:
                self._varies = True
            views[name] = self._view(line, common, stale, report, self._load.count(endpoint))
        self._views = views

    def _view(self, line: Line, common: Line, stale: bool, report: LoadReport | None, legs: int) -> DecodeView:
        if report is None:
            return DecodeView(line, common, stale=stale)
        used = report.kv_use * report.cache_tokens
        each = used / report.running if report.running >= 1.0 else 0.0
        counted = min(report.running, float(legs))
        return DecodeView(
            line, common, stale=stale, kv_size=float(report.cache_tokens), kv_used=used, kv_each=each, counted=counted
        )

    def _tokens(self, body: Body) -> float:
        """The tokens whose KV a request needs at its end, by an estimate."""
        prompt = body.features.blocks.tokens or len(body.shared) // _BODY_BYTES
        return min(prompt + min(self._answer_tokens, body.decisions.most_tokens), self._longest)

    def _prefill_wait(self, prefills: Sequence[Endpoint], body: Body, now: float) -> PrefillWait | None:
        """How long the prompt would take at the P that finishes it first; None while no rate is learned."""
        expected, blocks = self._prefills.expected, body.features.blocks
        engines = [expected.engine(each.name) for each in prefills]
        if not engines or engines[0].rate(now) <= 0.0:
            return None
        waits = expected.waits(engines, blocks, now)
        least = min(waits)
        best = engines[waits.index(least)]
        self._prefill_rate = best.rate(now)
        own = best.left(blocks) / self._prefill_rate
        return PrefillWait(least + self.handoff, own + self.handoff)

    def _candidate(self, endpoint: Endpoint, body: Body, now: float) -> Candidate:
        engine, blocks = self._prefills.expected.engine(endpoint.name), body.features.blocks
        tokens = engine.left(blocks)
        legs, load = self._load.count(endpoint), self._load.of(endpoint)
        seconds, itl = self._cost(engine, tokens, now), self._views[endpoint.name].itl(load + 1.0)
        return Candidate(
            engine.wait(tokens, engine.rate(now) or 1.0, now), seconds, itl, self._share(endpoint.name), not legs
        )

    def _share(self, name: str) -> PrefillShare:
        found = self._shares.get(name)
        if found is None:
            found = self._shares[name] = PrefillShare()
        return found
