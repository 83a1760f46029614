"""`pdx bench` and `vllm bench serve` with the same requests: pairs of runs, in both orders, and how far they differ."""

import asyncio
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Final

from benchmarks.bench import requests
from benchmarks.bench.lines import Line, append, read
from benchmarks.bench.servers import server
from benchmarks.bench.tools import PDX, TOOLS, VLLM
from pdx_cli.local.engines import EngineKind

ORDERS: Final = tuple(permutations((VLLM, PDX)))
TOLERANCE: Final[Mapping[str, float]] = {
    "ttft_p50": 0.03,
    "tpot_p50": 0.03,
    "requests": 0.03,
    "tokens": 0.03,
    "ttft_p99": 0.1,
    "tpot_p99": 0.1,
}
"""Largest relative difference of each figure on simulated engines."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One comparison."""

    kind: EngineKind
    count: int
    rate: float
    prompts: tuple[int, int]
    answers: tuple[int, int]
    pairs: int
    """Of each order."""


PLANS: Final[Mapping[EngineKind, Plan]] = {
    EngineKind.SIM: Plan(EngineKind.SIM, 2000, 40.0, (200, 1000), (8, 24), 5),
    EngineKind.VLLM: Plan(EngineKind.VLLM, 300, 10.0, (50, 300), (8, 24), 5),
}


async def run(plan: Plan, model: Path, folder: Path, results: Path) -> None:
    """Add the runs that the file of results lacks, one line each."""
    trace = requests.make(folder, plan.count, plan.rate, plan.prompts, plan.answers)
    async with server(plan.kind, model, folder / "run", trace) as (subject, shape):
        both = requests.for_both(trace, shape, plan.count, plan.rate)
        for order, index in ((order, index) for index in range(plan.pairs) for order in ORDERS):
            for tool in order:
                key = {"engine": str(plan.kind), "first": order[0], "pair": index, "tool": tool}
                if any(key.items() <= line.items() for line in read(results)):
                    continue
                figures = await asyncio.to_thread(TOOLS[tool], subject, both)
                assert (figures.completed, figures.failed) == (plan.count, 0), figures
                append(results, {**key, **figures.document()})
                sys.stderr.write(f"{key} {figures.document()}\n")


def differences(lines: Sequence[Line], first: str) -> dict[str, float]:
    """By which part the median of `pdx bench` is off that of the other tool, of one order."""
    found = {}
    for name in TOLERANCE:
        medians = {tool: statistics.median(_values(lines, tool, name, first)) for tool in TOOLS}
        found[name] = medians[PDX] / medians[VLLM] - 1
    return found


def beyond_spread(lines: Sequence[Line]) -> dict[str, tuple[float, float, float]]:
    """Of each figure: both medians, and the spread of `vllm bench serve`, over all of its runs."""
    found = {}
    for name in TOLERANCE:
        theirs = _values(lines, VLLM, name)
        own = statistics.median(_values(lines, PDX, name))
        found[name] = (statistics.median(theirs), own, max(theirs) - min(theirs))
    return found


def _values(lines: Sequence[Line], tool: str, name: str, first: str | None = None) -> list[float]:
    return [line[name] for line in lines if line["tool"] == tool and first in (None, line["first"])]


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Markdown: medians of both tools in each order, their difference and what is permitted."""
    yield "| figure | vllm first: vllm, pdx, apart | pdx first: vllm, pdx, apart | permitted |"
    yield "|---|---|---|---|"
    for name, permitted in TOLERANCE.items():
        cells = []
        for order in ORDERS:
            theirs, own = (statistics.median(_values(lines, tool, name, order[0])) for tool in (VLLM, PDX))
            cells.append(f"{theirs:.2f}, {own:.2f}, {100 * (own / theirs - 1):+.2f} %")
        yield f"| {name} | {' | '.join(cells)} | {100 * permitted:g} % |"


def spread_table(lines: Sequence[Line]) -> Iterator[str]:
    """Markdown: both medians, and the spread of the other tool."""
    yield "| figure | median of vllm | median of pdx | apart | spread of vllm |"
    yield "|---|---|---|---|---|"
    for name, (theirs, own, spread) in beyond_spread(lines).items():
        yield f"| {name} | {theirs:.2f} | {own:.2f} | {abs(own - theirs):.2f} | {spread:.2f} |"


def holds(lines: Sequence[Line], kind: EngineKind) -> bool:
    """Whether the criterion holds: on real engines, medians differ by no more than the other tool's own runs."""
    if kind is EngineKind.VLLM:
        medians = {name: each for name, each in beyond_spread(lines).items() if name.endswith("p50")}
        return all(abs(own - theirs) <= spread for theirs, own, spread in medians.values())
    found = [differences(lines, order[0]) for order in ORDERS]
    return all(abs(each[name]) <= permitted for each in found for name, permitted in TOLERANCE.items())
