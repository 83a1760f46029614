"""`python -m benchmarks.goodput.burst`: bursts to D's above the capacity of P's, and after the load has fallen."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.campaigns import recorded
from benchmarks.goodput import report
from benchmarks.goodput.burst import plot
from benchmarks.goodput.burst.experiment import Run, Setting, compare, prefill_capacity, simulate, stepped
from benchmarks.goodput.campaign import load
from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.measures import Slo
from benchmarks.goodput.policies import WITH_SLO
from benchmarks.goodput.simulation import Layout
from benchmarks.goodput.synthetic import SYNTHETIC
from benchmarks.goodput.traces import Trace
from pdx_proxy.balancing.decode.placement import Place
from pdx_sim.profiles import LLAMA_70B

LOADS: Final = (0.5, 1.1, 1.3)
STEP: Final = (1.3, 0.5, 120.0)
"""Load before, load after, and when it falls, in seconds."""
_SHOWN_SECONDS: Final = 300.0
_BEGIN, _END = "<!-- begin of the bursts: written by the benchmark -->", "<!-- end of the bursts -->"


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for one trace."""

    trace: str
    capacity: float
    runs: dict[float, dict[str, Run]]
    """By load and by name."""
    last_burst: float
    """Seconds from the fall of the load to the last burst; 0 if there was none after it."""
    bursts: int
    """Before the load fell."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 1 if bursts make a share worse, or come at half the load."""
    options = _parse(arguments)
    setting = Setting(
        EngineModel.of(LLAMA_70B), Slo(options.ttft, options.tpot), Layout(options.prefill, options.decode)
    )
    folder = options.results or report.HERE / "results" / datetime.now(UTC).date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    traces = sorted(report.HERE.glob("traces/*.csv*"))
    found = [
        measure(setting, load(source, 1, options.requests), folder)
        for source in options.trace or (*map(str, traces), *SYNTHETIC)
    ]
    text = table(found, setting)
    (folder / "bursts.json").write_text(json.dumps([document(each) for each in found], indent=1) + "\n")
    print(text)
    if options.readme:
        path = report.HERE / "README.md"
        before, rest = path.read_text().split(_BEGIN)
        names = text.replace("](", f"](results/{folder.name}/")
        path.write_text(f"{before}{_BEGIN}\n{names}{_END}{rest.split(_END)[1]}")
    return 0 if all(holds(each) for each in found) else 1


def measure(setting: Setting, trace: Trace, folder: Path | None) -> Found:
    """All runs of one trace."""
    capacity = prefill_capacity(setting, trace)
    runs = {each: compare(setting, trace, capacity * each) for each in LOADS}
    before, after, at = STEP
    times = stepped(trace, before * capacity, after * capacity, at)
    records, router = simulate(setting, WITH_SLO, setting.layout, times)
    bursts = [moment for moment, why in router.placed if why is Place.BURST]
    if folder is not None:
        caption = f"{trace.name}: {before:g} times what the P's can prefill, {after:g} times from {at:g} s on"
        text = plot.svg([record.at for record in records], router.placed, at, _SHOWN_SECONDS, caption)
        (folder / f"bursts-{trace.name}.svg").write_text(text)
    print(f"{trace.name}: done", file=sys.stderr, flush=True)
    last = max([moment - at for moment in bursts if moment > at], default=0.0)
    return Found(trace.name, capacity, runs, last, sum(moment <= at for moment in bursts))


def holds(found: Found) -> bool:
    """Whether no share is below that without bursts, nor, above the capacity of P's, below aggregated engines'."""
    for each, runs in found.runs.items():
        names = ("without", "aggregated") if each > 1 else ("without",)
        if any(runs["with the SLO"].outcome.share < runs[name].outcome.share for name in names):
            return False
    return not found.runs[0.5]["with the SLO"].count(Place.BURST) and found.last_burst <= 10.0


def table(found: Sequence[Found], setting: Setting) -> str:
    """All traces as Markdown."""
    lines = [
        f"{setting.layout}; SLO: {setting.slo}. "
        "Load 1 is the highest rate at which the P's can prefill 90% of the requests in time.",
        "Cells with %: the share of requests within the SLO. "
        "Last two columns: the number of requests that D's prefilled.",
        "",
        "| trace | load | with the SLO | without an SLO "
        "| aggregated, ExpectedWait | aggregated, LeastRequests | bursts | sooner at D |",
        "|" + "---|" * 8,
    ]
    for each in found:
        for load_, runs in each.runs.items():
            shares = " | ".join(f"{100 * run.outcome.share:.1f} %" for run in runs.values())
            own = runs["with the SLO"]
            lines.append(
                f"| {each.trace} | {load_:g} ({load_ * each.capacity:.3g} req/s) | {shares} | {own.count(Place.BURST)} "
                f"| {own.count(Place.SOONER)} |"
            )
    before, after, at = STEP
    lines += ["", f"In a further run with the SLO, the load falls from {before:g} to {after:g} after {at:g} s:", ""]
    for each in found:
        last = f"last burst {each.last_burst:.1f} s after the fall" if each.last_burst else "no burst after the fall"
        lines.append(f"* {each.trace}: {each.bursts} bursts before the fall; {last} ([plot](bursts-{each.trace}.svg))")
    return "\n".join([*lines, ""])


def document(found: Found) -> dict[str, Any]:
    """One trace for JSON."""
    runs = {
        str(each): {
            name: {**run.outcome.document(), "bursts": run.count(Place.BURST), "sooner": run.count(Place.SOONER)}
            for name, run in by_name.items()
        }
        for each, by_name in found.runs.items()
    }
    step = {"bursts": found.bursts, "lastBurstSeconds": round(found.last_burst, 3)}
    return {"trace": found.trace, "capacity": found.capacity, "runs": runs, "step": step}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    found = argparse.ArgumentParser(prog="python -m benchmarks.goodput.burst", description=__doc__)
    add = found.add_argument
    add("--trace", action="append", metavar="FILE", help="a trace, or the name of a synthetic one (default: all)")
    add("--prefill", type=int, default=4, metavar="N", help="prefill engines (default: %(default)s)")
    add("--decode", type=int, default=4, metavar="N", help="decode engines (default: %(default)s)")
    add("--ttft", type=float, default=5.0, metavar="SECONDS", help="SLO (default: %(default)s)")
    add("--tpot", type=float, default=0.05, metavar="SECONDS", help="SLO (default: %(default)s)")
    add("--requests", type=int, default=4_000, metavar="N", help="of each trace, from its beginning; 0: all")
    add("--results", type=Path, metavar="FOLDER", help="where results go (default: benchmarks/goodput/results/DATE)")
    add("--readme", action="store_true", help="also write the table into benchmarks/goodput/README.md")
    return found.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(recorded("python3 -m benchmarks.goodput.burst", main, whole=not sys.argv[1:]))
