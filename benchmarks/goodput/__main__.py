"""`make goodput`: simulate all policies with whole traces and compare their goodput."""

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.campaigns import recorded
from benchmarks.goodput import plot, report
from benchmarks.goodput.campaign import ROOT, Plan, Runner, capacity, curve, load
from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.measures import Slo
from benchmarks.goodput.policies import POLICIES
from benchmarks.goodput.simulation import Layout
from benchmarks.goodput.synthetic import SYNTHETIC
from benchmarks.goodput.traces import TraceError
from pdx_sim.profiles import PROFILES

TRACES: Final = report.HERE / "traces"
LOADS: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
_CACHE: Final = ROOT / ".cache" / "goodput"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.goodput", description=__doc__)
    add = found.add_argument
    add(
        "--trace",
        action="append",
        metavar="FILE",
        help=f"a trace, or the name of a synthetic one ({', '.join(SYNTHETIC)}); may be repeated (default: those of "
        f"{TRACES.relative_to(ROOT)} and all synthetic ones)",
    )
    add("--policy", action="append", choices=tuple(POLICIES), help="may be repeated (default: all)")
    add("--prefill", type=_count, default=8, metavar="N", help="prefill engines (default: %(default)s)")
    add("--decode", type=_count, default=4, metavar="N", help="decode engines (default: %(default)s)")
    add("--loads", type=_loads, default=LOADS, metavar="X,Y", help="of the capacity of as many aggregated engines")
    add("--ttft", type=_positive, default=5.0, metavar="SECONDS", help="SLO (default: %(default)s)")
    add("--tpot", type=_positive, default=0.05, metavar="SECONDS", help="SLO (default: %(default)s)")
    add("--profile", choices=tuple(PROFILES), default=next(iter(PROFILES)), help="the engines (default: %(default)s)")
    add("--seed", type=int, default=1, help="of synthetic traces and of policies that draw lots (default: %(default)s)")
    add("--requests", type=int, default=0, metavar="N", help="only the first N requests of each trace (default: all)")
    add(
        "--jobs",
        type=_count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="simulations at a time (default: one per core)",
    )
    add("--results", type=Path, metavar="FOLDER", help="where results go (default: benchmarks/goodput/results/DATE)")
    add(
        "--cache",
        type=Path,
        default=_CACHE,
        metavar="FOLDER",
        help="where finished cells are kept, so that a run can be resumed",
    )
    add("--readme", action="store_true", help="also write the tables into benchmarks/goodput/README.md")
    return found.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; return the exit code: 1 if a requirement is missed."""
    options = parse(arguments)
    plan = Plan(
        EngineModel.of(PROFILES[options.profile]), Slo(options.ttft, options.tpot), options.seed, options.requests
    )
    runner = Runner(plan, options.cache, options.jobs, lambda line: print(line, file=sys.stderr, flush=True))
    sources = options.trace or [*(str(path) for path in sorted(TRACES.glob("*.csv*"))), *SYNTHETIC]
    policies = tuple(options.policy or POLICIES)
    try:
        comparisons = [_compare(runner, source, policies, options) for source in sources]
    except TraceError as error:
        print(error, file=sys.stderr)
        return 2
    _write(plan, comparisons, options)
    for each in comparisons:
        print(f"\n{report.title(each)}\n{report.terminal(report.table(each))}")
        for text, holds, why in report.verdicts(each):
            print(f"  {'met    ' if holds else 'NOT MET'}  {text} ({why})")
    return 0 if all(holds for each in comparisons for _, holds, _ in report.verdicts(each)) else 1


def _compare(runner: Runner, source: str, policies: Sequence[str], options: argparse.Namespace) -> report.Comparison:
    layout = Layout(options.prefill, options.decode)
    trace = load(source, runner.plan.seed, runner.plan.requests)
    unit = capacity(runner, source, layout)
    print(f"{trace.name}: aggregated engines serve {unit:g} req/s within the SLO.", file=sys.stderr, flush=True)
    curves = {name: curve(runner, source, name, layout, unit, options.loads) for name in policies}
    return report.Comparison(trace.name, len(trace.requests), trace.shared, layout, unit, tuple(options.loads), curves)


def _write(plan: Plan, comparisons: Sequence[report.Comparison], options: argparse.Namespace) -> None:
    day = datetime.now(UTC).date()
    folder = options.results or report.HERE / "results" / day.isoformat()
    names = {each.trace: f"{each.trace}.svg" for each in comparisons}
    plots = {names[each.trace]: plot.svg(each, report.title(each)) for each in comparisons}
    report.write(folder, report.document(plan, comparisons, day), report.text(plan, comparisons, day, names), plots)
    if options.readme:
        within = {trace: f"results/{folder.name}/{name}" for trace, name in names.items()}
        report.write_readme(report.text(plan, comparisons, day, within))
    print(f"Results: {folder}", file=sys.stderr)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("give at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("give a number above 0")
    return value


def _loads(text: str) -> tuple[float, ...]:
    return tuple(sorted({_positive(each) for each in text.split(",")}))


if __name__ == "__main__":
    sys.exit(recorded("make goodput", main, whole=not sys.argv[1:]))
