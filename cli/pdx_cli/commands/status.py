"""`pdx status`: every `pdx up` of this user on this machine, with its processes."""

import argparse
import asyncio
import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from pdx_api.names import Mode
from pdx_api.verification import Finding, Verdict
from pdx_cli import usage
from pdx_cli.display.lines import Line, amount, line
from pdx_cli.inputs import formats
from pdx_cli.runs import reaper
from pdx_cli.runs.run_record import Ending, Process, Run, default_root, directories, live_runs
from pdx_cli.sources.answers import STATE_PATH
from pdx_cli.sources.client import AnswerError, Client

EPILOG: Final = """\
examples:
  pdx status
  pdx status -o json | jq '.[].endpoint'
  pdx status -o name"""


RECENT_SECONDS: Final = 3600.0
"""For so long, an ended run is listed below the running ones."""
UNLIMITED: Final = 10_000
"""Columns where there is neither a terminal nor the variable COLUMNS."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run and its gateway's state."""

    run: Run
    state: Mapping[str, Any] | None
    """The gateway's /pdx/state; None if it does not answer (yet)."""
    now: float
    """Unix time, seconds."""

    @property
    def uptime(self) -> int:
        """Seconds since the start."""
        return max(0, int(self.now - self.run.started))

    def endpoint(self, process: Process) -> Mapping[str, Any]:
        """Return the gateway's endpoint of an engine; empty if it has none."""
        found = (e for e in (self.state or {}).get("endpoints", ()) if e["url"].rstrip("/") == process.url)
        return next(found, {})

    def as_json(self) -> dict[str, Any]:
        """Return everything, for `--json`."""
        processes = [
            {**dataclasses.asdict(p), "alive": reaper.has_members(p.pid), "state": self.endpoint(p).get("state")}
            for p in self.run.processes
        ]
        run = {**dataclasses.asdict(self.run), "processes": processes}
        return {**run, "uptimeSeconds": self.uptime, "gateway": self.state}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx status`."""
    formats.add_arguments(parser, "text", "json", "yaml", "name")
    parser.add_argument(
        "--run-dir",
        type=usage.directory,
        default=default_root(),
        metavar="DIR",
        help="directory of a run, or parent of several (default: %(default)s)",
    )
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Print the running `pdx up`s, and remove the records of ended ones."""
    reports = asyncio.run(_reports(live_runs(args.run_dir)))
    if args.format == "name":
        print("".join(f"{report.run.name}\n" for report in reports), end="")
    elif args.format != "text":
        print(formats.printed([report.as_json() for report in reports], args.format), end="")
    elif not reports:
        print("Nothing runs; start a deployment with `pdx up FILE`.")
        _print_ended(args.run_dir, time.time(), since=0.0)
    else:
        for report in reports:
            _print(report)
        now = time.time()
        _print_ended(args.run_dir, now, since=now - RECENT_SECONDS)
    return 0


def _print_ended(root: Path, now: float, *, since: float) -> None:
    """Print how each ended run has ended, the last one first."""
    ended = [(directory.ending(), directory.logs) for directory in directories(root, ended=True)]
    for ending, logs in sorted(ended, key=lambda each: -each[0].at):
        if ending.at >= since:
            print(f"{ended_sentence(ending, now)} Its logs are in {logs}.")


def ended_sentence(ending: Ending, now: float) -> str:
    """Return which run has ended, when, and why."""
    ago = f"{usage.duration(max(0, int(now - ending.at)))} ago"
    return f"{ending.name} ended {ago}: {ending.why}." if ending.is_failure else f"{ending.name} ended {ago}."


async def _reports(runs: list[Run]) -> list[Report]:
    async with Client() as client:
        states = await asyncio.gather(*(_state(client, run) for run in runs))
    return [Report(run, state, time.time()) for run, state in zip(runs, states, strict=True)]


async def _state(client: Client, run: Run) -> Mapping[str, Any] | None:
    try:
        state: Mapping[str, Any] = await client.json(f"{run.admin}{STATE_PATH}", seconds=2.0)
    except AnswerError:
        return None
    return state


def _print(report: Report) -> None:
    run = report.run
    wiring = f"{run.connector} {run.order}" if run.connector else run.mode
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{run.name}: {run.model}, {wiring}, {run.engine}, up {usage.duration(report.uptime)}", "bold"))
    console.print(Text(f"  {run.endpoint}/v1   {_in_flight(report.state)}"))
    if kv := _kv(report.state):
        console.print(Text(f"  {kv}"))
    if run.processes:
        console.print(Text(f"  logs: {Path(run.processes[0].log).parent}"))
    width = shutil.get_terminal_size((UNLIMITED, 0)).columns
    head, *rows = _table(report)
    console.print(Text(head.cut(width).text, "dim"))
    for row in rows:
        console.print(Text(row.cut(width).text))


def _table(report: Report) -> Iterator[Line]:
    """Yield a row for each process. The state, which has a reason, is last: a narrow terminal cuts it."""
    rows = [("process", "pid", "in flight", "url", "state")]
    for process in report.run.processes:
        in_flight = str(report.endpoint(process).get("inFlight", ""))
        rows.append((process.name, str(process.pid), in_flight, process.url, _liveness(report, process)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield line(f"  {cells}".rstrip())


def _liveness(report: Report, process: Process) -> str:
    if not reaper.has_members(process.pid):
        return "dead"
    endpoint = report.endpoint(process)
    if not endpoint:
        return "running"
    reason = endpoint.get("reason")
    return f"{endpoint['state']}: {reason}" if reason else str(endpoint["state"])


def _in_flight(state: Mapping[str, Any] | None) -> str:
    if state is None:
        return "(the gateway does not answer yet)"
    ready = "ready" if state["ready"] else "not ready"
    counts = state["inFlight"].items()
    flight = ", ".join(amount(n, "request") if name == "requests" else f"{n} {name}" for name, n in counts)
    return f"{ready}; in flight: {flight}"


def _kv(state: Mapping[str, Any] | None) -> str:
    """Return the result of the gateway's transfer probes; empty if it runs none."""
    result = (state or {}).get("kvTransfer")
    if result is None or (state or {}).get("mode") != Mode.DISAGGREGATED:
        return ""
    finding = Finding.read(result)
    match finding.verdict:
        case Verdict.VERIFIED:
            down = [str(e["name"]) for e in (state or {}).get("endpoints") or () if e.get("state") != "Warm"]
            if down:
                return (
                    f"KV not proved now: {amount(len(down), 'engine')} {'does' if len(down) == 1 else 'do'} not serve"
                )
            return f"KV moves: verified in {amount(finding.pairs, 'pair', finding.possible)}"
        case Verdict.BROKEN:
            return f"KV does not move: {finding.broken[0].sentence}"
    return f"KV: {finding.why}"
