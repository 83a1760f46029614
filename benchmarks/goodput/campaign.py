"""The experiment: every policy with every trace at every load. Finished cells are kept, so a run can be resumed."""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.measures import GOAL, Outcome, Slo, outcome
from benchmarks.goodput.policies import BASELINE, POLICIES
from benchmarks.goodput.simulation import Layout, Simulation
from benchmarks.goodput.synthetic import SYNTHETIC, generate
from benchmarks.goodput.traces import Trace, read

ROOT: Final = Path(__file__).parents[2]
_COMMON: Final = (
    *(f"benchmarks.goodput.{name}" for name in ("engine", "measures", "simulation", "synthetic", "traces")),
    *(f"pdx_sim.core.{name}" for name in ("blocks", "links", "prefix_cache", "scheduler")),
    "pdx_cli.bench.load.traces",
    "pdx_sim.profiles",
)
_STEP: Final = 1.15
"""Factor between loads beyond those that were requested, until goodput is found."""
_MOST: Final = 8.0
_LEAST: Final = 0.1
_PRECISION: Final = 1.02
"""Of the capacity."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all cells have in common."""

    model: EngineModel
    slo: Slo
    seed: int
    requests: int = 0
    """Only so many requests of each trace, from its beginning; 0: all."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    source: str
    """File of the trace, or the name of a synthetic one."""
    policy: str
    layout: Layout
    rate: float

    def key(self, plan: Plan) -> str:
        """What its result depends on, as a hash: the cell, the plan, the trace's bytes, and the code."""
        path = Path(self.source)
        trace = self.source if self.source in SYNTHETIC else hashlib.sha256(path.read_bytes()).hexdigest()
        code = digest((*_COMMON, *POLICIES[self.policy].sources))
        text = repr((trace, self.policy, self.layout, round(self.rate, 6), plan, code))
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@lru_cache
def digest(modules: tuple[str, ...]) -> str:
    """A hash of the sources of modules and packages."""
    found = hashlib.sha256()
    for name in modules:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin)
        for each in sorted(path.parent.glob("*.py")) if spec.submodule_search_locations else (path,):
            found.update(each.read_bytes())
    return found.hexdigest()


@lru_cache(maxsize=2)
def load(source: str, seed: int, requests: int) -> Trace:
    """A trace from its file, or a synthetic one."""
    trace = generate(source, seed) if source in SYNTHETIC else read(Path(source))
    return Trace(trace.name, trace.requests[:requests]) if requests else trace


def run(cell: Cell, plan: Plan) -> Outcome:
    """Simulate one cell."""
    began = time.process_time()
    trace = load(cell.source, plan.seed, plan.requests)
    engines = cell.layout.engines(plan.model)
    router = POLICIES[cell.policy].router(engines, plan.model, random.Random(plan.seed), plan.slo)
    records = Simulation(engines, router, plan.model).run(trace.at_rate(cell.rate))
    return outcome(records, cell.rate, plan.slo, time.process_time() - began)


@dataclass(slots=True)
class Runner:
    """Runs cells, several at a time, and keeps their outcomes on disk."""

    plan: Plan
    cache: Path
    jobs: int
    report: Callable[[str], None]
    """Receives one line for each cell."""
    done: dict[Cell, Outcome] = field(default_factory=dict)

    def outcomes(self, cells: Sequence[Cell]) -> list[Outcome]:
        """The outcomes of cells, from the cache where it has them."""
        missing = [cell for cell in dict.fromkeys(cells) if cell not in self.done and not self._read(cell)]
        workers = min(self.jobs, len(missing))
        if workers > 1:
            with ProcessPoolExecutor(workers) as pool:
                futures = [(cell, pool.submit(run, cell, self.plan)) for cell in missing]
                for cell, future in futures:
                    self._keep(cell, future.result())
        else:
            for cell in missing:
                self._keep(cell, run(cell, self.plan))
        return [self.done[cell] for cell in cells]

    def _path(self, cell: Cell) -> Path:
        return self.cache / f"{cell.key(self.plan)}.json"

    def _read(self, cell: Cell) -> bool:
        try:
            self.done[cell] = Outcome.read(json.loads(self._path(cell).read_text()))
        except (OSError, ValueError, TypeError):
            return False
        return True

    def _keep(self, cell: Cell, result: Outcome) -> None:
        self.done[cell] = Outcome.read(result.document())
        self.cache.mkdir(parents=True, exist_ok=True)
        path = self._path(cell)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(result.document()))
        partial.replace(path)
        self.report(
            f"{Path(cell.source).name:34} {cell.policy:26} {cell.layout!s:9} {cell.rate:7.2f} req/s: "
            f"{100 * result.share:5.1f} % within the SLO, {100 * result.hit_share:4.1f} % cached, TTFT "
            f"{result.ttft_p50:.2f} / {result.ttft_p99:.2f} s ({result.seconds:.0f} s of CPU)"
        )


def capacity(runner: Runner, source: str, layout: Layout) -> float:
    """The rate at which aggregated engines, as many as the layout has, serve 90 % within the SLO.

    The gateway chooses among them by LeastRequests. Halves an interval until it is small.
    """
    aggregated = Layout(0, 0, layout.prefill + layout.decode)
    trace = load(source, runner.plan.seed, runner.plan.requests)
    mean = sum(request.prompt for request in trace.requests) / len(trace.requests)
    rate = aggregated.aggregated / (mean * runner.plan.model.cost.per_token) / 2

    def enough(rate: float) -> bool:
        return runner.outcomes([Cell(source, BASELINE, aggregated, rate)])[0].share >= GOAL

    low, high = (rate, rate * 1.5) if enough(rate) else (rate / 1.5, rate)
    while high > rate and enough(high):
        low, high = high, high * 1.5
    while low < rate and not enough(low):
        low, high = low / 1.5, low
    while high / low > _PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if enough(middle) else (low, middle)
    return float(f"{low:.3g}")


def curve(
    runner: Runner, source: str, policy: str, layout: Layout, unit: float, loads: Sequence[float]
) -> dict[float, Outcome]:
    """The outcomes of one policy by load, and at further loads until the goodput lies between two of them."""
    found = dict(
        zip(loads, runner.outcomes([Cell(source, policy, layout, unit * each) for each in loads]), strict=True)
    )
    for each in _further(found):
        found[each] = runner.outcomes([Cell(source, policy, layout, unit * each)])[0]
    return found


def _further(found: dict[float, Outcome]) -> Iterator[float]:
    """Loads to measure besides, above all or below all; ends when the share crosses the goal."""
    while found[max(found)].share >= GOAL and max(found) < _MOST:
        yield round(max(found) * _STEP, 3)
    while all(each.share < GOAL for each in found.values()) and min(found) > _LEAST:
        yield round(min(found) / _STEP**3, 3)
