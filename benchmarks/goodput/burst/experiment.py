"""Runs of one trace with and without bursts, at loads relative to what P's can prefill."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.gateway import Gateway
from benchmarks.goodput.measures import GOAL, Outcome, Slo, outcome
from benchmarks.goodput.policies import BASELINE, DEFAULT, POLICIES, WITH_SLO
from benchmarks.goodput.simulation import Layout, Record, Simulation
from benchmarks.goodput.traces import Request, Trace
from pdx_proxy.balancing.decode.placement import Place

_PRECISION: Final = 1.03
_SEED: Final = 1

Timed = Iterator[tuple[float, Request]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs have in common."""

    model: EngineModel
    slo: Slo
    layout: Layout


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed."""

    outcome: Outcome
    placed: tuple[tuple[float, Place], ...]
    """When D's got requests that a P could have prefilled, and why."""

    def count(self, why: Place) -> int:
        """How many there were for this reason."""
        return Counter(each for _, each in self.placed)[why]


def run(setting: Setting, policy: str, layout: Layout, requests: Timed, rate: float) -> Run:
    """Simulate one run."""
    records, router = simulate(setting, policy, layout, requests)
    return Run(outcome(records, rate, setting.slo, 0.0), tuple(router.placed))


def simulate(setting: Setting, policy: str, layout: Layout, requests: Timed) -> tuple[list[Record], Gateway]:
    """Simulate one run of a policy of PDX."""
    engines = layout.engines(setting.model)
    router = POLICIES[policy].router(engines, setting.model, random.Random(_SEED), setting.slo)
    assert isinstance(router, Gateway)
    return Simulation(engines, router, setting.model).run(requests), router


def prefill_capacity(setting: Setting, trace: Trace) -> float:
    """The rate at which P's and D's serve 90 % of the requests within the SLO while no D prefills.

    D's are idle enough in this layout, so that is what the P's can prefill. Of several such rates it is the lowest.
    """
    mean = sum(request.prompt for request in trace.requests) / len(trace.requests)
    rate = setting.layout.prefill / (mean * setting.model.cost.per_token) / 4

    def enough(rate: float) -> bool:
        return run(setting, DEFAULT, setting.layout, trace.at_rate(rate), rate).outcome.share >= GOAL

    while not enough(rate):
        rate /= 2
    while enough(rate * 1.25):
        rate *= 1.25
    low, high = rate, rate * 1.25
    while high / low > _PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if enough(middle) else (low, middle)
    return float(f"{low:.3g}")


def compare(setting: Setting, trace: Trace, rate: float) -> dict[str, Run]:
    """The same requests with bursts, without, and on as many aggregated engines by both policies of PDX."""
    count = setting.layout.prefill + setting.layout.decode
    runs = {
        "with the SLO": (WITH_SLO, setting.layout),
        "without": (DEFAULT, setting.layout),
        "aggregated": (DEFAULT, Layout(0, 0, count)),
        "aggregated, LeastRequests": (BASELINE, Layout(0, 0, count)),
    }
    return {name: run(setting, policy, layout, trace.at_rate(rate), rate) for name, (policy, layout) in runs.items()}


def stepped(trace: Trace, before: float, after: float, seconds: float) -> Timed:
    """The trace at the rate `before`, and from a moment on at the rate `after`."""
    for at, request in trace.at_rate(before):
        yield (at if at <= seconds else seconds + (at - seconds) * before / after), request
