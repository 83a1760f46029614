"""Arms of a comparison on simulated engines: `benchmarks.goodput` passes the events, `pdx_cli.bench` does the rest."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.gateway import Gateway, Stateless
from benchmarks.goodput.simulation import Layout, Simulation
from benchmarks.goodput.simulation import Record as SimRecord
from benchmarks.goodput.traces import Chains, Request
from pdx_cli.bench.analysis.arms import Arm, ArmResult, goodputs, next_step
from pdx_cli.bench.analysis.bottleneck import bottleneck
from pdx_cli.bench.analysis.phases import Phase
from pdx_cli.bench.analysis.search import Search
from pdx_cli.bench.analysis.steps import Slo, StepResult, counted, step_result
from pdx_cli.bench.analysis.verdict import Verdict, judge
from pdx_cli.bench.load.records import Record
from pdx_cli.bench.statistics import mean
from pdx_sim.profiles import LLAMA_70B

REPEATS = 3


@dataclass(frozen=True)
class Lengths:
    """Prompts and answers of requests: alternatives with their shares."""

    choices: tuple[tuple[float, int, int], ...]
    """Share, prompt tokens, output tokens."""

    def draw(self, rng: random.Random) -> tuple[int, int]:
        found = rng.choices(self.choices, [share for share, _, _ in self.choices])[0]
        return found[1], found[2]


@dataclass(frozen=True)
class Case:
    """What is compared."""

    arms: tuple[Arm, ...]
    lengths: Lengths
    slo: Slo
    start: float
    """A rate from which to search."""
    requests: int = 300
    gateway_seconds: float = 0.0
    """CPU time of the gateway for each leg, of which one is served at a time."""
    changes: tuple[tuple[str, float], ...] = ()
    """Settings of the engines that differ from the profile."""

    def verdict(self, seed: int) -> tuple[Verdict, dict[str, ArmResult]]:
        results = [measure(self, arm, seed) for arm in self.arms]
        return judge(results, self.slo), {result.arm.name: result for result in results}


def measure(case: Case, arm: Arm, seed: int) -> ArmResult:
    """Search for the goodput of an arm, and repeat."""
    search, steps = Search(case.start), list[StepResult]()
    while (planned := next_step(search, REPEATS, steps)) is not None:
        rate, repeat = planned
        steps.append(step(case, arm, rate, repeat, seed))
    return ArmResult(arm, goodputs(search, REPEATS, steps), tuple(steps), bottleneck(steps, arm.prefill))


def step(case: Case, arm: Arm, rate: float, repeat: int, seed: int) -> StepResult:
    """One step of an arm. Equal repeats of different arms have the same requests."""
    rng = random.Random(f"{seed} {repeat} {rate:.6f}")
    chunked = {"max_num_batched_tokens": arm.chunk} if arm.chunk else {}
    spaced = {"prefill_schedule_interval": arm.interval} if arm.interval else {}
    model = EngineModel.of(LLAMA_70B, **dict(case.changes), **chunked, **spaced)
    layout = Layout(arm.prefill, arm.decode, arm.aggregated)
    engines = layout.engines(model)
    router = Gateway(engines, Stateless(), Stateless(), above=arm.above)
    planned = list(_requests(case, rate, rng))
    passed = list(_through_gateway(planned, case, arm))
    found = Simulation(engines, router, model).run(passed)
    warm_up = planned[len(planned) // 6][0]
    records = [_record(each, at, at < warm_up) for each, (at, _) in zip(found, planned, strict=True)]
    result = step_result(records, case.slo, rate, repeat, case.requests / rate, 0.0, is_valid=True)
    kept = [(each, at) for each, (at, _) in zip(found, planned, strict=True) if at >= warm_up]
    assert len(kept) == len(counted(records))
    return replace(result, phases=_phases(kept))


def _requests(case: Case, rate: float, rng: random.Random) -> Iterator[tuple[float, Request]]:
    chains, at = Chains(), 0.0
    for index in range(case.requests):
        at += rng.expovariate(rate)
        prompt, output = case.lengths.draw(rng)
        yield at, Request(index, at, prompt, output, chains.alone(prompt))


def _through_gateway(planned: list[tuple[float, Request]], case: Case, arm: Arm) -> Iterator[tuple[float, Request]]:
    """When requests leave a gateway that has CPU for one at a time."""
    free = 0.0
    for at, request in planned:
        legs = 2 if arm.split and request.prompt > arm.above else 1
        free = max(at, free) + legs * case.gateway_seconds
        yield free, request


def _record(found: SimRecord, at: float, warm_up: bool) -> Record:
    request = found.request
    return Record(
        request.index, at, at, found.first, found.last, found.last, request.prompt, request.output, warm_up=warm_up
    )


def _phases(kept: list[tuple[SimRecord, float]]) -> dict[str, float]:
    """Mean seconds of each phase, from the moments of the simulation."""
    rows = [_moments(each, at) for each, at in kept]
    names = (
        Phase.OUTSIDE,
        Phase.GATEWAY_QUEUE,
        Phase.PREFILL,
        Phase.DECODE_QUEUE,
        Phase.TRANSFER,
        Phase.FIRST_STEP,
        Phase.DECODE,
    )
    return {str(name): mean([row[i] for row in rows]) for i, name in enumerate(names)}


def _moments(found: SimRecord, at: float) -> list[float]:
    if found.route is None or found.route.prefill is None:
        moments = [at, found.at, found.sent, found.first, found.first, found.first, found.first, found.last]
    else:
        moments = [at, found.at, found.sent, found.answered, found.loading, found.loaded, found.first, found.last]
    return [later - earlier for earlier, later in pairwise(moments)]
