"""`pdx status`: every `pdx up` of this user on this machine, with its processes."""

import argparse
import asyncio
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pdx_api.names import Mode
from pdx_api.verification import Finding, Verdict
from pdx_cli import usage
from pdx_cli.inputs import formats
from pdx_cli.runs import reaper
from pdx_cli.runs.run_record import Process, Run, default_root, directories, live_runs
from pdx_cli.sources.answers import STATE_PATH
from pdx_cli.sources.client import AnswerError, Client

EPILOG: Final = """\
examples:
  pdx status
  pdx status -o json | jq '.[].endpoint'
  pdx status -o name"""


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
        for directory in directories(args.run_dir, ended=True):
            print(f"The logs of the last run are in {directory.logs}.")
    else:
        for report in reports:
            _print(report)
    return 0


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
    console.print(Text(f"{run.name}: {run.model}, {wiring}, {run.engine}, up {_duration(report.uptime)}", "bold"))
    console.print(Text(f"  {run.endpoint}/v1   {_in_flight(report.state)}"))
    if kv := _kv(report.state):
        console.print(Text(f"  {kv}"))
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_edge=False)
    for column in ("  process", "pid", "state", "in flight", "url", "log"):
        table.add_column(column, no_wrap=True, header_style="dim")
    for process in run.processes:
        endpoint = report.endpoint(process)
        in_flight = str(endpoint.get("inFlight", ""))
        cells = (f"  {process.name}", str(process.pid), _liveness(report, process), in_flight, process.url, process.log)
        table.add_row(*(Text(cell) for cell in cells))
    # On a terminal, rich cuts the table to its width; in a pipe, the columns must stay whole.
    Console(highlight=False, width=None if console.is_terminal else 300).print(table)


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
    flight = ", ".join(f"{count} {name}" for name, count in state["inFlight"].items())
    return f"{ready}; in flight: {flight}"


def _kv(state: Mapping[str, Any] | None) -> str:
    """Return the result of the gateway's transfer probes; empty if it runs none."""
    result = (state or {}).get("kvTransfer")
    if result is None or (state or {}).get("mode") != Mode.DISAGGREGATED:
        return ""
    finding = Finding.read(result)
    match finding.verdict:
        case Verdict.VERIFIED:
            return f"KV moves: verified in {finding.pairs} of {finding.possible} pairs"
        case Verdict.BROKEN:
            return f"KV does not move: {finding.broken[0].sentence}"
    return f"KV: {finding.why}"


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
