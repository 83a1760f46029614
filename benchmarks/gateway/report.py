"""The results of a run: JSON, the table of the README, the verdicts."""

import json
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.gateway.gateways import GATEWAYS, PDX
from benchmarks.gateway.loads import LOADS, PACED_SECONDS, PACED_TIMES
from benchmarks.gateway.rows import Cell, Row, Verdict

HERE: Final = Path(__file__).parent
_BEGIN: Final = "<!-- begin of the table: written by the benchmark -->"
_END: Final = "<!-- end of the table -->"
_QUIET: Final = 0.05
"""The share of the gateways' core above which the report mentions other processes."""
_FULL: Final = 0.9
"""The share of its core from which on a gateway counts as filling it."""


def machine() -> dict[str, str]:
    """The conditions of the measurement."""
    info = Path("/proc/cpuinfo").read_text()
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    model = re.search(r"model name\s*: (.*)", info)
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": str(info.count("processor\t")),
        "memory": f"{int(memory[1]) // 1024**2} GiB" if memory else "?",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def write_json(path: Path, document: Mapping[str, Any], verdicts: Sequence[Verdict]) -> None:
    """Everything that was measured, and the rows made of it."""
    rows = [
        {
            "row": verdict.row.key,
            "title": verdict.row.title,
            "unit": verdict.row.unit,
            "medians": {name: cell.median for name, cell in verdict.cells.items()},
            "spreads": {name: round(cell.spread, 3) for name, cell in verdict.cells.items()},
            "reference": verdict.reference,
            "ratio": verdict.ratio,
            "gate": {"asked": verdict.row.gate, "met": verdict.gate},
            "goal": {"asked": verdict.row.goal, "met": verdict.goal},
        }
        for verdict in verdicts
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**document, "rows": rows}, indent=1) + "\n")


def table(verdicts: Sequence[Verdict]) -> str:
    """The rows in Markdown; a cell is the median of the rounds and its spread."""
    measured = {name for verdict in verdicts for name in verdict.cells}
    subjects = {verdict.subject for verdict in verdicts} - {PDX.name}  # they are in the column of PDX
    shown = [gateway for gateway in GATEWAYS if gateway.name in measured - subjects]
    if measured & subjects and PDX not in shown:
        shown.insert(min(1, len(shown)), PDX)
    lines = ["| | " + " | ".join(gateway.title for gateway in shown) + " | ratio | at least | goal |"]
    lines.append("|---|" + "---|" * (len(shown) + 3))
    for verdict in (verdict for verdict in verdicts if verdict.cells):
        cells = [_cell(verdict, gateway.name) for gateway in shown]
        ratio = "-" if verdict.ratio is None else f"**{verdict.ratio:.2f} ×**"
        row = verdict.row
        title = f"{row.title}, {row.unit}" if row.unit else row.title
        required = [_required(row, row.gate, verdict.gate), _required(row, row.goal, verdict.goal)]
        lines.append(f"| {title} | " + " | ".join([*cells, ratio, *required]) + " |")
    return "\n".join(lines)


def _cell(verdict: Verdict, name: str) -> str:
    if name == PDX.name:
        name = verdict.subject
    elif verdict.row.against == "one":
        return ""
    cell = verdict.cells.get(name)
    return "-" if cell is None else _number(verdict.row, cell)


def _number(row: Row, cell: Cell) -> str:
    return f"{cell.median:,.{row.digits}f} ± {50 * cell.spread:.0f} %"


def _required(row: Row, value: float | None, passed: bool | None) -> str:
    if value is None:
        return ""
    text = f"{'≥' if row.more else '≤'} {value:g}{' ×' if row.against != 'limit' else f' {row.unit}'}"
    return f"{text}: {'-' if passed is None else 'met' if passed else '**not met**'}"


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """One line for each row: the value, the ratio, the requirement."""
    labels = {True: "met", False: "NOT MET", None: "-"}
    lines = []
    for verdict in (verdict for verdict in verdicts if verdict.cells):
        cell = verdict.cells.get(verdict.subject)
        value = "not measured" if cell is None else f"{cell.median:,.{verdict.row.digits}f} {verdict.row.unit}".strip()
        ratio = "" if verdict.ratio is None else f"{verdict.ratio:.2f} x {verdict.reference}"
        lines.append(
            f"{verdict.row.title:64} {value:>12}  {ratio:24} gate {labels[verdict.gate]:8} goal {labels[verdict.goal]}"
        )
    return lines


def write_readme(document: Mapping[str, Any], verdicts: Sequence[Verdict], plot: str) -> None:
    """Put the table into the README, between its marks."""
    found = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    notes = [
        f"Measured on {document['date']}: {found['cpu']}, {found['cores']} cores, {found['memory']}, "
        f"Linux {found['kernel']}, Python {found['python']}; {versions}. {document['options']['rounds']} rounds of "
        f"{document['options']['seconds']:g} s (added times: {PACED_TIMES} times {PACED_SECONDS:g} s in each); medians "
        "± half of the spread. "
        "Ratio: pdx to the best Rust gateway of the run.",
        *(f"\nNot measured: {name}: {why}." for name, why in document["missing"].items()),
        *(f"\n{line}" for line in document["remarks"]),
    ]
    _replace(_BEGIN, "\n".join([*notes, "", table(verdicts), "", f"![the same as a plot]({plot})"]), _END)


def _replace(begin: str, text: str, end: str) -> None:
    path = HERE / "README.md"
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


def remarks(rounds: Sequence[Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> list[str]:
    """The failures of the runs: errors, violations of the protocol, prefills that were never read."""
    lines = []
    for gateway in dict.fromkeys(name for runs in rounds for name in runs):
        results = [result for runs in rounds for result in runs.get(gateway, {}).values()]
        measured = [result for result in results if "failed" not in result]
        engines = [result["engines"] for result in measured]
        wrong = {
            "errors": sum(result["errors"] for result in measured),
            "unfinished": sum(result["unfinished"] for result in measured),
            "failed runs": len(results) - len(measured),
            "violations": sum(count["violations"] for count in engines),
            "prefills never fetched": sum(count["prefills_finished"] - count["prefills_fetched"] for count in engines),
            "answers cut": sum(count["left"] for count in engines),
        }
        if gateway.startswith("pdx"):
            wrong["decodes without a prefill"] = sum(count["decodes_alone"] for count in engines)
        if any(wrong.values()):
            first = next((result["error"] for result in measured if result["error"]), "")
            text = ", ".join(f"{name} {count:,}" for name, count in wrong.items() if count)
            lines.append(f"{gateway}: {text}{f' (first: {first})' if first else ''}.")
    lines = lines or ["No errors, no violations of the protocol, no prefill that nobody fetched, in any run."]
    foreign = [
        result["foreign_share"]
        for runs in rounds
        for gateway, results in runs.items()
        for result in results.values()
        if gateway != "direct" and "failed" not in result
    ]
    if foreign and max(foreign) > _QUIET:
        share, most = 100 * statistics.mean(foreign), 100 * max(foreign)
        lines.append(
            f"The machine was not quiet: other processes used {share:.0f}% of the gateways' core on average, "
            f"{most:.0f}% in the worst run."
        )
    return [*lines, *_queues(rounds), *_unfilled(rounds)]


def _queues(rounds: Sequence[Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> list[str]:
    """How many requests waited in PDX's queue, and at which limits."""
    lines = []
    for load in LOADS:
        for gateway in dict.fromkeys(name for runs in rounds for name in runs):
            results = [runs[gateway][load.name] for runs in rounds if load.name in runs.get(gateway, {})]
            shares = [result["waited"] / result["requests"] for result in results if "waited" in result]
            if load.settles and shares:
                limits = sorted({limit for result in results for limit in result["limits"]})
                settled = all(result["settled"] for result in results)
                text = ", ".join(f"{limit:g}" for limit in limits) or "none"
                lines.append(
                    f"{load.name}, {gateway}: {100 * statistics.median(shares):.0f}% of the requests waited in the "
                    f"queue; limits of the engines: {text}{'' if settled else ' (NOT settled)'}."
                )
    return lines


def _unfilled(rounds: Sequence[Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> list[str]:
    """Where a gateway left its core idle under a load without a pace, so that something else was the limit."""
    shares: dict[str, list[str]] = {}
    for load in LOADS:
        for gateway in dict.fromkeys(name for runs in rounds for name in runs):
            results = [runs[gateway][load.name] for runs in rounds if load.name in runs.get(gateway, {})]
            share = statistics.median([result.get("cpu_share", 0.0) for result in results] or [0.0])
            if gateway != "direct" and not load.rate and 0 < share < _FULL:
                shares.setdefault(load.name, []).append(f"{gateway} {100 * share:.0f}%")
    if not shares:
        return []
    text = "; ".join(f"{load}: {', '.join(names)}" for load, names in shares.items())
    return [f"Gateways that did not fill their core (engines, generator or other processes were the limit): {text}."]
