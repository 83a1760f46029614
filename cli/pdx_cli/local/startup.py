"""Waits until engines are healthy and the gateway has warmed them up, and shows the progress."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pdx_cli.errors import CommandError
from pdx_cli.local.layout import Layout, Program
from pdx_cli.runs.logs import tail
from pdx_cli.runs.run_record import RunDirectory
from pdx_cli.sources.answers import STATE_PATH
from pdx_cli.sources.client import AnswerError, Client

PAUSE_SECONDS: Final = 0.2
PLAIN_SECONDS: Final = 10.0
"""Without a terminal, an unchanged state is printed again after this time."""
LAST_LINES: Final = 15
"""Lines that are printed from the log of a program that is late."""
WARM_SECONDS: Final = 120.0
"""Limit for the gateway's warm-up of all engines; an engine's first forward pass may compile."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The start of one program."""

    name: str
    healthy: bool
    seconds: float
    """Since the start; constant once it is healthy."""
    last_line: str
    """Of its log."""

    @property
    def state(self) -> str:
        """The state, as one word."""
        return "healthy" if self.healthy else "loading"


Show = Callable[[Sequence[Progress]], None]


@contextlib.contextmanager
def display() -> Iterator[Show]:
    """Show progress on stderr: as a live table on a terminal, as occasional lines elsewhere."""
    console = Console(stderr=True, highlight=False, width=shutil.get_terminal_size().columns)
    if not console.is_terminal:
        yield _plain()
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield lambda progress: live.update(_table(progress), refresh=True)


async def healthy(client: Client, engines: Sequence[Program], logs: RunDirectory, limit: float, show: Show) -> None:
    """Wait until every program's health path returns 200; raises CommandError after `limit` seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    done: dict[str, float] = {}
    while True:
        waiting = [engine for engine in engines if engine.name not in done]
        answers = await asyncio.gather(*(client.is_ok(f"{engine.url}{engine.health}") for engine in waiting))
        now = loop.time() - began
        done |= {engine.name: now for engine, ok in zip(waiting, answers, strict=True) if ok}
        show([_progress(engine, done, now, logs) for engine in engines])
        if len(done) == len(engines):
            return
        if now > limit:
            late = next(engine for engine in engines if engine.name not in done)
            last = tail(logs.log(late.name), LAST_LINES)
            ending = f"{logs.log(late.name)} {'ends with:' if last else 'is empty.'}"
            raise CommandError(f"{late.name} was not healthy after {limit:g} s (--start-timeout); {ending}", last)
        await asyncio.sleep(PAUSE_SECONDS)


async def warm(client: Client, layout: Layout, limit: float = WARM_SECONDS) -> None:
    """Wait until the gateway is ready and every engine is warm; raises CommandError after `limit` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    while True:
        problem = await _not_ready(client, layout)
        if problem is None:
            return
        if loop.time() > deadline:
            raise CommandError(f"The gateway was not ready within {limit:g} s: {problem}.")
        await asyncio.sleep(PAUSE_SECONDS / 2)


async def _not_ready(client: Client, layout: Layout) -> str | None:
    """Return why the gateway is not ready; None if it is."""
    try:
        state = await client.json(f"{layout.admin.url}{STATE_PATH}")
        for endpoint in state["endpoints"]:
            if endpoint["state"] != "Warm":
                return _reason(layout, endpoint)
        await client.text(f"{layout.gateway.url}/ready")
    except AnswerError as error:
        return str(error)
    return None


def _reason(layout: Layout, endpoint: dict[str, Any]) -> str:
    address = str(endpoint["url"]).removeprefix("http://").rstrip("/")
    reason = str(endpoint["reason"] or "no reason given").rstrip(".")
    return f"{layout.name_of(address) or address} is {endpoint['state']}: {reason}"


def _progress(program: Program, done: dict[str, float], now: float, logs: RunDirectory) -> Progress:
    last = "".join(tail(logs.log(program.name), 1))
    return Progress(program.name, program.name in done, done.get(program.name, now), last)


def _table(progress: Sequence[Progress]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for one in progress:
        colour = "green" if one.healthy else "yellow"
        last = "" if one.healthy else one.last_line
        table.add_row(one.name, f"[{colour}]{one.state}", f"{one.seconds:.0f} s", _escaped(last))
    return table


def _escaped(line: str) -> str:
    return line.replace("[", r"\[")


def _plain() -> Show:
    shown: dict[str, tuple[str, float]] = {}

    def show(progress: Sequence[Progress]) -> None:
        for one in progress:
            state, at = shown.get(one.name, ("", 0.0))
            if state == one.state and (one.healthy or one.seconds - at < PLAIN_SECONDS):
                continue
            shown[one.name] = (one.state, one.seconds)
            last = "" if one.healthy or not one.last_line else f"  {one.last_line[:100]}"
            print(f"{one.name}: {one.state}, {one.seconds:.0f} s{last}", file=sys.stderr, flush=True)

    return show
