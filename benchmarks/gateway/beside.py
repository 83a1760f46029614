"""Compares the gateway with an earlier commit of this repository: requests per second, and CPU time per request."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.gateway.gateways import PDX, PDX_DEFAULTS, Gateway, pdx_of
from benchmarks.gateway.loads import LOADS, Load
from benchmarks.gateway.measure import Result

NAMES: Final = ("settled-8", "settled-64", "prompt-100k", "prompt-1m", "stream", "paced-256")
"""The loads that are compared, if the command line names no others."""


def plan(commit: str, names: Sequence[str]) -> tuple[list[Gateway], list[Load]]:
    """Return the gateways that are compared, and the loads, each for the two gateways that it compares."""
    old = pdx_of(commit)
    gateways, loads = [PDX, PDX_DEFAULTS, *old], []
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
        names = (PDX_DEFAULTS.name, f"pdx-{commit}-defaults") if load.settles else (PDX.name, f"pdx-{commit}")
        new, old = ([each[name][load.name] for each in rounds] for name in names)
        if not all(result.get("requests") for result in (*new, *old)):
            yield f"| {load.name} | failed, or no request was answered |  |  |  |  |  |"
            continue
        (rate, cpu), (rate_old, cpu_old) = map(_medians, (new, old))
        rates = f"{rate:,.0f} | {rate_old:,.0f} | {rate / rate_old:.2f}"
        yield f"| {load.name} | {rates} | {cpu:.3f} | {cpu_old:.3f} | {cpu_old / cpu:.2f} |"


def _medians(results: Sequence[Result]) -> tuple[float, float]:
    """Return requests per second, and milliseconds of CPU time per request."""
    rates = [each["requests"] / each["seconds"] for each in results]
    return statistics.median(rates), statistics.median(each["cpu_ms"] for each in results)
