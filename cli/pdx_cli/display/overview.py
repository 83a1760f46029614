"""What `pdx up` runs on this machine: each run, its processes and its gateway's state."""

import argparse
import asyncio
import dataclasses
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from pdx_api.names import Mode
from pdx_api.verification import Finding, Verdict
from pdx_cli import streams, usage
from pdx_cli.display.lines import line, shortened, wrapped
from pdx_cli.inputs import formats
from pdx_cli.runs import reaper
from pdx_cli.runs.run_record import RECENT_SECONDS, Ending, Process, Run, default_root, directories, live_runs
from pdx_cli.sources.client import AnswerError, Client
from pdx_cli.sources.figures import WARM, why_not_verified

HEALTH_SECONDS: Final = 3.0
"""As in `pdx doctor`."""
SILENT: Final = "Silent"
"""As in `pdx top`."""
UNLIMITED: Final = 10_000
"""Columns where there is neither a terminal nor the variable COLUMNS."""
COLUMNS: Final = (
    ("process", "state", "in flight", "pid", "url"),
    ("process", "state", "in flight", "pid", "address"),
    ("process", "state", "in flight", "pid", "port"),
    ("process", "state", "in flight", "port"),
    ("process", "state", "port"),
)
"""The columns of the table, for ever narrower terminals."""
SHORTEST_NAME: Final = 7


@dataclass(frozen=True, slots=True)
class Report:
    """A run and its gateway's state."""

    run: Run
    state: Mapping[str, Any] | None
    """The gateway's /pdx/state; None if it does not answer (yet)."""
    silent: Mapping[str, str]
    """The engines that do not answer although the gateway still uses them, and why."""
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
        return {**run, "running": True, "uptimeSeconds": self.uptime, "gateway": self.state}


def run(args: argparse.Namespace) -> int:
    """Print the running `pdx up`s, and remove the records of ended ones."""
    root = args.run_dir or default_root()
    reports = asyncio.run(_reports(live_runs(root)))
    now = time.time()
    ended = _ended(root, since=now - RECENT_SECONDS if reports else 0.0)
    if args.format == "name":
        print("".join(f"{report.run.name}\n" for report in reports), end="")
    elif args.format != "text":
        objects = [*(each.as_json() for each in reports), *(_ended_as_json(*each, now) for each in ended)]
        print(formats.printed(objects, args.format, streams.encoding()), end="")
    else:
        for report in reports:
            _print(report)
        if not reports:
            print("Nothing runs; start a deployment with `pdx up FILE`.")
        for ending, logs in ended:
            print(f"{ending.sentence(now)} Its logs are in {logs}.")
    return 0


def _ended(root: Path, *, since: float) -> list[tuple[Ending, Path]]:
    """Return how each run has ended since that time, with its logs, the last one first."""
    ended = [(directory.ending(), directory.logs) for directory in directories(root, ended=True)]
    return sorted((each for each in ended if each[0].at >= since), key=lambda each: -each[0].at)


def _ended_as_json(ending: Ending, logs: Path, now: float) -> dict[str, Any]:
    """Return how a run has ended, for programs. Unless `endedExactly`, it ended at most so long ago."""
    ago = max(0, int(now - ending.at))
    fields = {"name": ending.name, "running": False, "endedSecondsAgo": ago, "endedExactly": ending.is_exact}
    return {**fields, "why": ending.why, "logs": str(logs)}


async def _reports(runs: list[Run]) -> list[Report]:
    async with Client() as client:
        return list(await asyncio.gather(*(_report(client, run) for run in runs)))


async def _report(client: Client, run: Run) -> Report:
    state = await _state(client, run)
    used = {str(e["url"]).rstrip("/") for e in (state or {}).get("endpoints") or () if e.get("state") == WARM}
    engines = [process for process in run.processes if process.url in used]
    problems = await asyncio.gather(*(_problem(client, each) for each in engines))
    silent = {each.name: problem for each, problem in zip(engines, problems, strict=True) if problem}
    return Report(run, state, silent, time.time())


async def _problem(client: Client, engine: Process) -> str:
    """Return why an engine is not healthy; empty if it is."""
    try:
        await client.text(f"{engine.url}/health", seconds=HEALTH_SECONDS)
    except AnswerError as error:
        return str(error).removeprefix(engine.url)
    return ""


async def _state(client: Client, run: Run) -> Mapping[str, Any] | None:
    try:
        return await client.state(run.admin, seconds=2.0)
    except AnswerError:
        return None


def _print(report: Report) -> None:
    width = shutil.get_terminal_size((UNLIMITED, 0)).columns
    console = Console(width=width, highlight=False, soft_wrap=True)
    title, *summary = _summary(report, width)
    console.print(Text(title, "bold"))
    for each in summary:
        console.print(Text(each))
    head, *rows = _table(report, width)
    console.print(head, style="dim")
    for row in rows:
        console.print(row)


def _summary(report: Report, width: int) -> Iterator[str]:
    """Yield the title and what is known about the whole run. Only the path of the logs may exceed the width."""
    run = report.run
    wiring = f"{run.connector} {run.order}" if run.connector else run.mode
    title = f"{run.name}: {run.model}, {wiring}, {run.engine}, up {usage.duration(report.uptime)}"
    first, *rest = wrapped(title, width)
    yield from (first, *(f"  {part}" for part in rest))
    endpoint, flight = f"{run.endpoint}/v1", _in_flight(report)
    one_line = f"{endpoint}   {flight}"
    for text in (one_line,) if len(one_line) + 2 <= width else (endpoint, flight):
        yield from _indented(text, width)
    if kv := _kv(report.state, report.silent):
        yield from _indented(kv, width)
    if run.processes:
        yield f"  logs: {Path(run.processes[0].log).parent}"


def _indented(text: str, width: int) -> list[str]:
    """Return the text on a line of that width if it fits, otherwise on several."""
    return [f"  {text}"] if len(text) + 2 <= width else [f"  {part}" for part in wrapped(text, width - 2)]


def _table(report: Report, width: int) -> Iterator[Text]:
    """Yield the head and a row for each process, in so many columns, with the reasons of states.

    The reasons are the last column. If one does not fit, each is below its row.
    """
    processes = report.run.processes
    states, reasons = zip(*(_liveness(report, each) for each in processes), strict=True) if processes else ((), ())
    cells = [_cells(each, state, report.endpoint(each)) for each, state in zip(processes, states, strict=True)]
    longest = max(map(len, reasons), default=0)
    tables = (_aligned(cells, columns) for columns in COLUMNS)
    head, *rows = next((table for table in tables if len(table[0]) <= width), _narrowest(cells, width))
    is_column = len(head) + 2 + longest <= width
    yield line(f"{head}  {'reason' if is_column and longest else ''}".rstrip(), width=width)
    for row, reason in zip(rows, reasons, strict=True):
        yield line(f"{row}  {reason if is_column else ''}".rstrip(), width=width)
        if not is_column:
            yield from (line(f"    {part}") for part in wrapped(reason, width - 4))


def _cells(process: Process, state: str, endpoint: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the value of every column."""
    address = process.url.removeprefix("http://")
    return {
        "process": process.name,
        "state": state,
        "in flight": str(endpoint.get("inFlight", "")),
        "pid": str(process.pid),
        "url": process.url,
        "address": address,
        "port": f":{address.rpartition(':')[2]}",
    }


def _narrowest(cells: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return the table with the fewest columns, and with names that are short enough for the width."""
    excess = len(_aligned(cells, COLUMNS[-1])[0]) - width
    longest = max((len(row["process"]) for row in cells), default=0) - max(0, excess)
    named = [{**row, "process": shortened(row["process"], max(SHORTEST_NAME, longest))} for row in cells]
    return _aligned(named, COLUMNS[-1])


def _aligned(cells: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    """Return the head and the rows of a table, all of one length."""
    widths = [max(len(column), *(len(row[column]) for row in cells), 0) for column in columns]
    rows = [columns, *([row[column] for column in columns] for row in cells)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [f"  {'  '.join(row)}" for row in padded]


def _liveness(report: Report, process: Process) -> tuple[str, str]:
    """Return a process's state, and the reason for it."""
    if not reaper.has_members(process.pid):
        return "dead", ""
    endpoint = report.endpoint(process)
    if process.name in report.silent:
        return SILENT, f"{report.silent[process.name]}; the gateway still reports {endpoint['state']}"
    return str(endpoint.get("state") or "running"), str(endpoint.get("reason") or "")


def _in_flight(report: Report) -> str:
    state = report.state
    if state is None:
        return "(the gateway does not answer)" if report.run.serving else "(the gateway does not answer yet)"
    ready = "ready" if state["ready"] else "not ready"
    counts = state["inFlight"].items()
    flight = ", ".join(usage.amount(n, "request") if name == "requests" else f"{n} {name}" for name, n in counts)
    return f"{ready}; in flight: {flight}"


def _kv(state: Mapping[str, Any] | None, silent: Collection[str] = ()) -> str:
    """Return the result of the gateway's transfer probes; empty if it runs none."""
    result = (state or {}).get("kvTransfer")
    if result is None or (state or {}).get("mode") != Mode.DISAGGREGATED:
        return ""
    finding = Finding.read(result)
    match finding.verdict:
        case Verdict.VERIFIED:
            cold = [e for e in (state or {}).get("endpoints") or () if e.get("state") != WARM]
            if down := len(cold) + len(silent):
                return f"KV not proved now: {usage.amount(down, 'engine')} {'does' if down == 1 else 'do'} not serve"
            return f"KV moves: verified in {usage.amount(finding.pairs, 'pair', finding.possible)}"
        case Verdict.BROKEN:
            return f"KV does not move: {finding.broken[0].sentence}"
    return f"KV: {why_not_verified(finding.why, (state or {}).get('endpoints') or ())}"
