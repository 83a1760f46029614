"""Compares the gateway with an earlier commit of this repository: requests per second, and CPU time per request."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.gateway.gateways import DIRECT, PDX, PDX_DEFAULTS, Gateway, pdx_of
from benchmarks.gateway.loads import LOADS, Load
from benchmarks.gateway.measure import Result

NAMES: Final = ("settled-8", "settled-64", "prompt-100k", "prompt-1m", "stream", "paced-256")
"""The loads that are compared, if the command line names no others."""


def plan(commit: str, names: Sequence[str]) -> tuple[list[Gateway], list[Load]]:
    """Return the gateways that are compared, and the loads, each for the two gateways that it compares."""
    old = pdx_of(commit)
    gateways, loads = [DIRECT, PDX, PDX_DEFAULTS, *old], []
    for load in LOADS:
        if load.name in (names or NAMES):
            pair = (PDX_DEFAULTS, old[1]) if load.settles else (PDX, old[0])
            loads.append(replace(load, only=frozenset(each.name for each in pair), times=1, seconds=None))
    return gateways, loads


def lines(rounds: Sequence[dict[str, dict[str, Result]]], commit: str, loads: Sequence[Load]) -> Iterator[str]:
    """Yield a table in Markdown: medians of the rounds, and their ratios."""
    yield f"| load | req/s | {commit} | new ÷ old | CPU ms | {commit} | old ÷ new |"
    yield "|---|---|---|---|---|---|---|"
    for load in loads:
        new, old = (PDX_DEFAULTS.name, f"pdx-{commit}-defaults") if load.settles else (PDX.name, f"pdx-{commit}")
        rate_new, rate_old = (_median(rounds, name, load, _rate) for name in (new, old))
        cpu_new, cpu_old = (_median(rounds, name, load, _cpu) for name in (new, old))
        rates = f"{rate_new:,.0f} | {rate_old:,.0f} | {rate_new / rate_old:.2f}"
        yield f"| {load.name} | {rates} | {cpu_new:.3f} | {cpu_old:.3f} | {cpu_old / cpu_new:.2f} |"


def _median(
    rounds: Sequence[dict[str, dict[str, Result]]], name: str, load: Load, take: Callable[[Result], float]
) -> float:
    return statistics.median(take(each[name][load.name]) for each in rounds)


def _rate(result: Result) -> float:
    return float(result["requests"] / result["seconds"])


def _cpu(result: Result) -> float:
    return float(result["cpu_ms"])
