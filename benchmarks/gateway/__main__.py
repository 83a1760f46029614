"""`python -m benchmarks.gateway`: measure the gateways, write the table."""

import argparse
import datetime
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.campaigns import recorded
from benchmarks.gateway import beside, cache, memory, plot, processes, published, report, strictness
from benchmarks.gateway.commits import CHECKOUT
from benchmarks.gateway.gateways import GATEWAYS, PDX, PDX_TWO, REPORTING, Engines, Gateway
from benchmarks.gateway.loads import LOADS, Load
from benchmarks.gateway.measure import Bench, run
from benchmarks.gateway.rows import judge

_SETTLE: Final = 0.3
"""Seconds between two runs."""


def progress(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="length of each run (%(default)s)")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="gateways to measure (and the direct load)"
    )
    parser.add_argument(
        "--loads", nargs="+", metavar="NAME", default=[], help="loads to run: " + ", ".join(x.name for x in LOADS)
    )
    parser.add_argument("--gateway-core", default="0", metavar="CORES", help="where gateways run (%(default)s)")
    parser.add_argument(
        "--load-core", default="1", metavar="CORES", help="where engines and generator run (%(default)s)"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--memory", type=float, metavar="SECONDS", help="measure memory instead (the gate asks for 600)"
    )
    instead.add_argument(
        "--streams", type=int, metavar="NUMBER", help="measure the memory of so many open streams instead (10000)"
    )
    instead.add_argument(
        "--beside",
        metavar="COMMIT",
        help="compare with an earlier commit of PDX instead (2109863, or 657efa9 and later)",
    )
    parser.add_argument("--keep", action="store_true", help="write nothing into the checkout, as in a part run")
    return parser.parse_args()


def start_gateways(
    chosen: list[Gateway], engines: Engines, core: str, folder: Path, stack: ExitStack
) -> tuple[dict[str, int], dict[str, str], dict[str, str]]:
    """Start them all; process ids, versions, and why those are missing that could not be had."""
    pids, versions, missing = {}, {}, {}
    for gateway in chosen:
        if gateway.command is None:
            continue
        try:
            command = gateway.command(engines, gateway.port, folder)
        except cache.SetupError as error:
            missing[gateway.name] = str(error)
            continue
        log = folder / f"{gateway.name}.log"
        process = processes.start(command.line, core, log, command.env, CHECKOUT)
        stack.callback(processes.end, process)
        failure = processes.await_serving(process, gateway.port)
        if failure is None:
            pids[gateway.name] = process.pid
            versions[gateway.name] = command.version
        else:
            missing[gateway.name] = f"{failure}: {log.read_text(errors='replace').strip()[-300:]}"
        progress(f"{gateway.name}: {'serves' if failure is None else missing[gateway.name]}")
    return pids, versions, missing


def measure_rounds(bench: Bench, loads: list[Load], chosen: list[Gateway], rounds: int, seconds: float) -> list[Any]:
    """Every load on every gateway, round by round; the order of the gateways turns.

    A load that a round measures several times has the others than the first in entries of their own.
    """
    found: list[Any] = []
    most = max(load.times for load in loads)
    for round_index, again in itertools.product(range(rounds), range(most)):
        at = len(found) % len(chosen)
        results: dict[str, dict[str, Any]] = {}
        for load in [each for each in loads if each.times > again]:
            for gateway in chosen[at:] + chosen[:at]:
                if load.only and gateway.name not in load.only:
                    continue
                result = run(bench, gateway, load, seconds)
                results.setdefault(gateway.name, {})[load.name] = result
                progress(f"round {round_index + 1}/{rounds} {load.name:14} {gateway.name:14} {_summary(result)}")
                time.sleep(_SETTLE)
        found.append(results)
    return found


def _summary(result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"failed: {result['failed']}"
    seconds = result["seconds"]
    text = f"{result['requests'] / seconds:9,.0f} req/s {result['events'] / seconds:9,.0f} chunks/s"
    text += f"  first p50 {result['first']['p50'] / 1000:7.2f} p99 {result['first']['p99'] / 1000:7.2f} ms"
    text += f"  gap p99 {result['gap']['p99'] / 1000:7.2f} ms  cpu {100 * result['cpu_share']:3.0f} %"
    wrong = {key: result[key] for key in ("errors", "unfinished") if result[key]}
    return text + (f"  {wrong} {result['error']}" if wrong else "")


def conclude(arguments: argparse.Namespace, document: dict[str, Any], chosen: list[Gateway]) -> None:
    """Print and store the results."""
    verdicts = judge(document["rounds"], [gateway.name for gateway in chosen if gateway.rust])
    document["remarks"] = report.remarks(document["rounds"])
    progress("\n" + report.table(verdicts) + "\n")
    for line in (*report.verdict_lines(verdicts), *document["remarks"]):
        progress(line)
    if arguments.keep or arguments.only or arguments.loads:
        return
    results = report.HERE / "results"
    report.write_json(results / f"{document['date']}.json", document, verdicts)
    caption = f"{document['date']}, {document['machine']['cpu']}: one core for the gateway; line: range of the rounds"
    (results / f"{document['date']}.svg").write_text(plot.svg(verdicts, caption))
    report.write_readme(document, verdicts, f"results/{document['date']}.svg")
    published.main()
    progress(f"written: {results / document['date']}.json, .svg and {report.HERE / 'README.md'}")


def main() -> int:
    """Run the benchmark as the command line requests; a whole run writes its entry into the list of campaigns."""
    arguments = read_arguments()
    part = any(getattr(arguments, name) for name in ("keep", "only", "loads", "memory", "streams", "beside"))
    return recorded("make bench", lambda: measure(arguments), whole=not part)


def measure(arguments: argparse.Namespace) -> int:
    """Run the benchmark; status 1 when it cannot be run."""
    engines = Engines()
    chosen = [g for g in GATEWAYS if not arguments.only or g.command is None or g.name in arguments.only]
    loads = [load for load in LOADS if not arguments.loads or load.name in arguments.loads]
    if arguments.memory or arguments.streams:
        chosen = [PDX_TWO if arguments.streams else PDX]
    elif arguments.beside:
        chosen, loads = beside.plan(arguments.beside, arguments.loads)
    os.sched_setaffinity(0, {int(core) for core in arguments.load_core.split(",")})
    with tempfile.TemporaryDirectory(prefix="pdx-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        try:
            tools = cache.build()
        except cache.SetupError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        programs = [str(tools.engine), *engines.arguments, *REPORTING.arguments]
        engine = processes.start(programs, arguments.load_core, folder / "engine.log")
        stack.callback(processes.end, engine)
        time.sleep(_SETTLE)
        if engine.poll() is not None:
            sys.stderr.write(f"the engines ended: {(folder / 'engine.log').read_text()}\n")
            return 1
        for port in (*REPORTING.prefill, *REPORTING.decode):
            processes.get_text(port, "/metrics/on")
        wrong = strictness.check(engines) + strictness.check_pages(engines, REPORTING)
        if wrong:
            sys.stderr.write(f"the engines are not strict: {'; '.join(wrong)}\n")
            return 1
        progress("the engines refuse what they should")
        if arguments.beside:
            return compare(arguments, tools.generator, engines, chosen, loads, folder)
        pids, versions, missing = start_gateways(chosen, engines, arguments.gateway_core, folder, stack)
        bench = Bench(tools.generator, engines, arguments.gateway_core, arguments.load_core, pids)
        if arguments.memory:
            return measure_memory(bench, arguments)
        if arguments.streams:
            return measure_streams(bench, arguments)
        present = [gateway for gateway in chosen if gateway.command is None or gateway.name in pids]
        document: dict[str, Any] = {
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "machine": report.machine(),
            "versions": versions,
            "missing": missing,
            "options": {"rounds": arguments.rounds, "seconds": arguments.seconds},
            "rounds": measure_rounds(bench, loads, present, arguments.rounds, arguments.seconds),
        }
    conclude(arguments, document, present)
    return 0


def compare(
    arguments: argparse.Namespace,
    generator: Path,
    engines: Engines,
    chosen: list[Gateway],
    loads: list[Load],
    folder: Path,
) -> int:
    """Compare with a commit, print and store the result; status 1 if a gateway does not start.

    Each round starts new processes: two processes of the same code can differ by several percent.
    """
    rounds: list[Any] = []
    versions: dict[str, str] = {}
    for number in range(arguments.rounds):
        with ExitStack() as stack:
            pids, versions, missing = start_gateways(chosen, engines, arguments.gateway_core, folder, stack)
            if missing:
                sys.stderr.write(f"not compared: {missing}\n")
                return 1
            bench = Bench(generator, engines, arguments.gateway_core, arguments.load_core, pids)
            at = number % len(chosen)
            rounds += measure_rounds(bench, loads, chosen[at:] + chosen[:at], 1, arguments.seconds)
    table = list(beside.lines(rounds, arguments.beside, loads))
    remarks = report.remarks(rounds)
    progress("\n".join(["", *table, "", *remarks]))
    found = {"versions": versions, "rounds": rounds, "table": table, "remarks": remarks}
    _store(arguments, f"beside-{versions[f'pdx-{arguments.beside}']}", found)
    return 0


def measure_memory(bench: Bench, arguments: argparse.Namespace) -> int:
    """The memory row."""
    if PDX.name not in bench.pids:
        return 1
    progress(f"mixed load for {arguments.memory:g} s")
    found = memory.measure(bench, arguments.memory)
    progress(
        f"memory: at most {found['most_mb']:.0f} MB, middle third {found['middle_third_mb']:.0f} MB, "
        f"last third {found['last_third_mb']:.0f} MB: {'met' if found['gate_met'] else 'NOT MET'}"
    )
    _store(arguments, "memory", found)
    return 0


def measure_streams(bench: Bench, arguments: argparse.Namespace) -> int:
    """The memory of open streams."""
    if PDX_TWO.name not in bench.pids:
        return 1
    found = memory.measure_streams(bench, arguments.streams)
    progress(
        f"{found['streams']:,.0f} open streams, {found['errors']} errors: {found['kb_per_stream']:.1f} kB each "
        f"({found['idle_mb']:.0f} MB before, {found['open_mb']:.0f} MB with them, two workers)"
    )
    _store(arguments, "streams", found)
    return 0


def _store(arguments: argparse.Namespace, name: str, found: dict[str, Any]) -> None:
    """Write a result beside those of the whole benchmark."""
    if arguments.keep:
        return
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    path = report.HERE / "results" / f"{today}-{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"date": today, "machine": report.machine(), **found}) + "\n")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)  # ends the started processes, also under nohup
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
