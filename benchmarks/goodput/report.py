"""The results of a run: JSON, tables for terminal and Markdown, and what was required of them."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from benchmarks.goodput.campaign import Plan
from benchmarks.goodput.measures import GOAL, Outcome
from benchmarks.goodput.policies import BASELINE, POLICIES
from benchmarks.goodput.simulation import Layout

HERE: Final = Path(__file__).parent
_BEGIN: Final = "<!-- begin of the table: written by the benchmark -->"
_END: Final = "<!-- end of the table -->"
SHARING: Final = 0.1
"""From this share of prompt tokens on that were seen before, a trace counts as one with sharing."""
TO_BASELINE: Final = 1.2
TO_BEST: Final = 0.98


@dataclass(frozen=True, slots=True)
class Comparison:
    """All policies with one trace."""

    trace: str
    requests: int
    shared: float
    """Prompt tokens that an unlimited cache would have."""
    layout: Layout
    capacity: float
    """Requests per second: load 1."""
    loads: tuple[float, ...]
    curves: Mapping[str, Mapping[float, Outcome]]
    """Policy -> load -> outcome; besides `loads`, those that the search for the goodput needed."""

    def goodput(self, policy: str) -> float:
        """Requests per second with 90 % within the SLO; 0 if every load was too much."""
        return goodput(tuple(self.curves[policy].values())) or 0.0

    @property
    def peers(self) -> list[str]:
        """The policies of other gateways."""
        return [name for name in self.curves if not POLICIES[name].pdx]


def goodput(outcomes: Sequence[Outcome]) -> float | None:
    """The highest rate with 90 % within the SLO, between the measured rates by a straight line; None if no rate has it.

    If the highest rate has it, that rate: measure higher ones.
    """
    ordered = sorted(outcomes, key=lambda each: each.rate)
    enough = [index for index, each in enumerate(ordered) if each.share >= GOAL]
    if not enough:
        return None
    below, above = ordered[enough[-1]], ordered[enough[-1] + 1 :]
    if not above:
        return below.rate
    part = (below.share - GOAL) / (below.share - above[0].share)
    return below.rate + part * (above[0].rate - below.rate)


def verdicts(comparison: Comparison) -> list[tuple[str, bool, str]]:
    """What is required of PDX's default with one trace: the requirement, whether it holds, and the numbers.

    It is compared with peers and with PDX's other policies, not with itself behind several gateways or with an SLO.
    """
    own = [name for name in comparison.curves if POLICIES[name].default]
    rates = {name: comparison.goodput(name) for name in comparison.curves}
    found = []
    for name in own:
        others = (each for each in rates if not each.startswith(f"{name},"))
        best = max(others, key=lambda each: rates[each])
        peer = max(comparison.peers, key=lambda each: rates[each], default=name)
        found.append((f"{name}: ≥ {TO_BEST} × the best", *_ratio(rates[name], rates[best], TO_BEST, best)))
        if comparison.shared >= SHARING:
            found.append((f"{name}: ≥ every peer", *_ratio(rates[name], rates[peer], 1.0, peer)))
            if BASELINE in rates:
                text = f"{name}: ≥ {TO_BASELINE} × {BASELINE}"
                found.append((text, *_ratio(rates[name], rates[BASELINE], TO_BASELINE, BASELINE)))
    return found


def _ratio(own: float, other: float, least: float, name: str) -> tuple[bool, str]:
    ratio = own / other if other else float("inf")
    return ratio >= least, f"{ratio:.2f} × {name}"


def table(comparison: Comparison) -> list[list[str]]:
    """The rows of one trace, the head first."""
    loads = comparison.loads
    middle = 1.0 if 1.0 in loads else loads[len(loads) // 2]
    head = ["policy", *(f"{load:g}" for load in loads), "goodput, req/s", f"× {BASELINE}"]
    head += [f"cached at {middle:g}", f"TTFT at {middle:g}, p50 / p99, s"]
    rows = [head]
    baseline = comparison.goodput(BASELINE) if BASELINE in comparison.curves else 0.0
    for name, found in comparison.curves.items():
        rate, at = comparison.goodput(name), found[middle]
        ratio = f"{rate / baseline:.2f}" if baseline else "-"
        shares = [f"{100 * found[load].share:.1f} %" for load in loads]
        cells = [f"{rate:.2f}", ratio, f"{100 * at.hit_share:.0f} %", f"{at.ttft_p50:.2f} / {at.ttft_p99:.1f}"]
        rows.append([name, *shares, *cells])
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in (lines[0], "|".join(["---"] * len(rows[0])), *lines[1:]))


def terminal(rows: Sequence[Sequence[str]]) -> str:
    """A table in columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def title(comparison: Comparison) -> str:
    """One line about a trace."""
    return (
        f"{comparison.trace}: {comparison.requests:,} requests, {100 * comparison.shared:.0f}% of the prompt tokens "
        f"seen before; {comparison.layout}; load 1 is {comparison.capacity:g} req/s"
    )


def document(plan: Plan, comparisons: Sequence[Comparison], day: date) -> dict[str, Any]:
    """All numbers, for JSON."""
    return {
        "date": day.isoformat(),
        "python": platform.python_version(),
        "slo": {"ttft_seconds": plan.slo.ttft, "tpot_seconds": plan.slo.tpot, "share": GOAL},
        "seed": plan.seed,
        "traces": [
            {
                "trace": each.trace,
                "requests": each.requests,
                "shared": round(each.shared, 4),
                "layout": {"prefill": each.layout.prefill, "decode": each.layout.decode},
                "capacity": each.capacity,
                "policies": {
                    name: {
                        "goodput": round(each.goodput(name), 4),
                        "loads": {f"{load:g}": found[load].document() for load in sorted(found)},
                    }
                    for name, found in each.curves.items()
                },
                "verdicts": [{"required": text, "met": holds, "found": why} for text, holds, why in verdicts(each)],
            }
            for each in comparisons
        ],
    }


def text(plan: Plan, comparisons: Sequence[Comparison], day: date, plots: Mapping[str, str]) -> str:
    """The section of the README with all tables."""
    parts = [
        f"Simulated on {day.isoformat()}; SLO: {plan.slo}, {100 * GOAL:g}% of the requests; seed {plan.seed}. Cells: "
        "the share of requests within the SLO, by load."
    ]
    for each in comparisons:
        parts.append(f"### {title(each)}\n\n{markdown(table(each))}")
        if each.trace in plots:
            parts.append(f"![the same as a plot]({plots[each.trace]})")
        lines = [f"* {text}: {'met' if holds else '**not met**'} ({why})" for text, holds, why in verdicts(each)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def write(folder: Path, found: Mapping[str, Any], body: str, plots: Mapping[str, str]) -> None:
    """Write JSON, tables and plots into a folder. `plots`: file name -> SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "results.md").write_text(body + "\n")
    for name, svg in plots.items():
        (folder / name).write_text(svg)


def write_readme(body: str) -> None:
    """Put the tables into the README, between their marks."""
    path = HERE / "README.md"
    before, rest = path.read_text().split(_BEGIN)
    path.write_text(f"{before}{_BEGIN}\n{body}\n{_END}{rest.split(_END)[1]}")
