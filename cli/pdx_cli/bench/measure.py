"""Measures one arm: search and repeats, each step with its load, its counters and its records."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pdx_api.names import Role
from pdx_cli.bench.analysis.arms import Arm, ArmResult, Sample, best_step, goodputs, next_step
from pdx_cli.bench.analysis.bottleneck import bottleneck
from pdx_cli.bench.analysis.counters import NOTHING, EngineTotals
from pdx_cli.bench.analysis.phases import Phase, from_records, from_totals, of_split, of_whole
from pdx_cli.bench.analysis.search import Search
from pdx_cli.bench.analysis.steps import Slo, StepResult, counted, is_certain, step_result
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Generator, Outcome, Shape, Step
from pdx_cli.bench.load.records import Record
from pdx_cli.bench.load.workload import Workload
from pdx_cli.bench.meters import Meters, Snapshot
from pdx_cli.bench.statistics import mean

_POLL_SECONDS: Final = 1.0
"""Between two readings of the engines' load."""
_MARGIN: Final = 1.0
"""Seconds beyond the SLO until an open request has failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all arms have in common."""

    load: Workload
    slo: Slo
    seconds: float
    """Of a step, without its warm-up."""
    warm_up: float
    repeats: int
    seed: int
    rates: tuple[float, ...] = ()
    """Rates to measure instead of a search."""

    @property
    def step_seconds(self) -> float:
        """About how long a step takes."""
        return self.warm_up + self.seconds + self.slo.ttft + self.load.mean_output * self.slo.tpot


@dataclass(frozen=True, slots=True)
class Observer:
    """Receives what happens."""

    began: Callable[[Arm, float, int, int], None]
    """A step: arm, rate, repeat, and about how many steps of the arm are left."""
    ended: Callable[[Arm, StepResult, Sequence[Record]], None]


@dataclass(slots=True)
class ArmRun:
    """The measurement of one arm. `result` may be read at any time: it has the steps so far."""

    arm: Arm
    server: Server
    shape: Shape
    meters: Meters
    plan: Plan
    observer: Observer
    start_rate: float
    shares_cores: str = ""
    clock: Callable[[], float] = time.perf_counter
    """Seconds; the event loop's has a resolution of a millisecond with uvloop."""
    steps: list[StepResult] = field(default_factory=list)
    _timeline: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    _totals: list[EngineTotals] = field(default_factory=lambda: [NOTHING, NOTHING])
    _samples: dict[tuple[int, float], tuple[Sample, ...]] = field(default_factory=dict)
    _began: float = math.nan
    """When the arm began, by the clock."""
    problem: str = "it was interrupted"

    async def run(self) -> None:
        """Measure until the arm is done."""
        search, self._began = self._search, self.clock()
        generator = Generator(self.server, self.shape, self.clock)
        try:
            while (planned := self._next(search)) is not None:
                await self._step(generator, *planned)
        finally:
            generator.close()
        self.problem = ""

    @property
    def _search(self) -> Search:
        return Search(self.start_rate, least=1 / self.plan.seconds)  # a step has a request, on average

    def _next(self, search: Search) -> tuple[float, int] | None:
        if not self.plan.rates:
            return next_step(search, self.plan.repeats, self.steps)
        done = len(self.steps)
        rates = self.plan.rates
        return (rates[done % len(rates)], done // len(rates)) if done < len(rates) * self.plan.repeats else None

    async def _step(self, generator: Generator, rate: float, repeat: int) -> None:
        plan = self.plan
        left = self._search.remaining([step.measured for step in self.steps if step.repeat == repeat])
        if plan.rates:
            left = len(plan.rates) * plan.repeats - len(self.steps)
        self.observer.began(self.arm, rate, repeat, left)
        before = await self.meters.read()
        polling = asyncio.create_task(self._poll())
        warmed_up = asyncio.create_task(self._read_after(plan.warm_up))
        try:
            outcome = await generator.run(self._load(rate, repeat), self._judge(rate))
            counting = warmed_up.result() if warmed_up.done() else before
        finally:
            for task in (polling, warmed_up):
                task.cancel()
            await asyncio.gather(polling, warmed_up, return_exceptions=True)
        after = await self.meters.read()
        self._totals = [total + more for total, more in zip(self._totals, self._grown(before, after), strict=True)]
        seconds = max(1e-3, outcome.seconds - plan.warm_up)
        late = outcome.lateness
        result = step_result(outcome.records, plan.slo, rate, repeat, seconds, late.p99, is_valid=not late.is_limit)
        phases = self._phases(outcome, counting, after)
        result = replace(result, stopped=outcome.stopped, phases={str(name): value for name, value in phases.items()})
        self._samples[repeat, rate] = tuple(_sample(each) for each in counted(outcome.records))
        self.steps.append(result)
        self.observer.ended(self.arm, result, outcome.records)

    def _load(self, rate: float, repeat: int) -> Step:
        plan = self.plan
        rng = random.Random(f"{plan.seed} {repeat} {rate:.9f}")  # noqa: S311 (no secret depends on it)
        seconds = plan.warm_up + plan.seconds
        drain = plan.slo.ttft + _MARGIN + plan.slo.tpot * 4 * plan.load.mean_output
        salt = salt_of(plan.seed, self.arm.name, repeat, rate, len(self.steps))
        return Step(plan.load.requests(rate, seconds, rng, repeat), seconds, plan.warm_up, drain, salt)

    def _judge(self, rate: float) -> Callable[[list[Record], list[float]], bool]:
        expected = rate * self.plan.seconds
        return lambda records, waiting: is_certain(records, waiting, self.plan.slo, expected)

    def _phases(self, outcome: Outcome, before: Snapshot | None, after: Snapshot | None) -> dict[Phase, float]:
        """The phases of the requests that count. Counters have a few more: what has begun in the warm-up."""
        whole = [record for record in counted(outcome.records) if record.failure is None]
        gateway = from_records(whole)
        engines, decodes = self._grown(before, after)
        if gateway is None and before is not None and after is not None:
            gateway = from_totals(after.gateway - before.gateway)
        if gateway is None or not whole:
            return {}
        ttft, decode = mean([each.ttft for each in whole]), mean([each.last - each.first for each in whole])
        if self.arm.split:
            return of_split(ttft, decode, gateway, engines, decodes)
        return of_whole(ttft, decode, gateway, engines)

    def _grown(self, before: Snapshot | None, after: Snapshot | None) -> tuple[EngineTotals, EngineTotals]:
        """What the engines that prefill, and the D's, have counted between two readings."""
        if before is None or after is None:
            return NOTHING, NOTHING
        first = (Role.PREFILL,) if self.arm.split else (Role.AGGREGATED, Role.DECODE)
        second = (Role.DECODE,) if self.arm.split else ()
        grown = tuple(after.totals(*roles) - before.totals(*roles) for roles in (first, second))
        return grown[0], grown[1]

    async def _read_after(self, seconds: float) -> Snapshot | None:
        """The counters when the requests begin that count."""
        await asyncio.sleep(seconds)
        return await self.meters.read()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            now = self.clock() - self._began
            for name, engine in (await self.meters.engines()).items():
                load = engine.metrics
                self._timeline.setdefault(name, []).append((round(now, 2), load.running or 0.0, load.waiting or 0.0))

    def result(self) -> ArmResult:
        """What has been measured so far."""
        steps = tuple(self.steps)
        found = goodputs(self._search, self.plan.repeats, steps)
        if self.plan.rates:
            found = tuple(step.rate * step.share for step in steps if step.rate == max(self.plan.rates))
        best = best_step(steps) or max(steps, key=lambda step: step.share, default=None)
        return ArmResult(
            arm=self.arm,
            goodputs=found,
            steps=steps,
            bottleneck=bottleneck(steps, self.arm.prefill),
            prefill=self._totals[0],
            decode=self._totals[1],
            samples=self._samples.get((best.repeat, best.rate), ()) if best else (),
            shares_cores=self.shares_cores,
            problem=self.problem,
            timeline=dict(self._timeline),
        )


def salt_of(seed: int, arm: str, repeat: int, rate: float, number: int) -> str:
    """Return what makes the prompts of a step differ from those of others, and equal in every run with this seed."""
    return f"{seed}/{arm}/{repeat}/{rate:.9f}/{number}"


def _sample(record: Record) -> Sample:
    failed = record.failure is not None
    return Sample(record.prompt_tokens, math.inf if failed else record.ttft, math.inf if failed else record.tpot)


def start_rate(ttft: float, latency: float, engines: int) -> float:
    """Return a rate from which to search, by the times of a request that is alone.

    An engine that prefills is busy for one TTFT per request; the search moves quickly if this is far off.
    """
    return max(0.01, max(1, engines) / max(2 * ttft, latency / 16, 1e-3))
