"""`pdx top`: shows a deployment live on the terminal."""

import argparse
import asyncio
import math
import time
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pdx_cli.errors import CommandError
from pdx_cli.inputs import target
from pdx_cli.sources.figures import QUANTILES, Figures, figures
from pdx_cli.sources.sampling import Sampler, sampler_of

EPILOG: Final = f"""\
examples:
  pdx top                            what `pdx up` runs here
  pdx top qwen -n llm
  kubectl pdx top qwen -n llm --interval 5
  pdx top --admin http://127.0.0.1:9090 --once

{target.WHERE}

Phases cover the requests that ended since the last update. `remote` is the share of a decode engine's prompt tokens
that came through the connector. Ctrl-C ends it."""

SHORTEST: Final = 0.1
LONGEST: Final = 3600.0
MAX_PAIRS: Final = 12
"""Rows of pairs; broken pairs come first."""
_STYLES: Final = {"Warm": "green", "Warming": "yellow", "Suspect": "yellow", "verified": "green", "broken": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx top`."""
    target.add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="print the figures of one interval and end")
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="time between two updates (default: %(default)g)",
    )
    parser.epilog = EPILOG


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST <= value <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is not a time; write seconds from {SHORTEST:g} to {LONGEST:g}")
    return value


def run(args: argparse.Namespace) -> int:
    """Show figures until Ctrl-C, or once."""
    try:
        asyncio.run(_watch(args))
    except KeyboardInterrupt:
        return 0
    return 0


async def _watch(args: argparse.Namespace) -> None:
    async with sampler_of(target.target_of(args), time.monotonic) as sampler:
        before = await sampler.sample()
        if args.once:
            await asyncio.sleep(args.interval)
            console = Console(highlight=False)
            # In a pipe, the columns must stay whole.
            console = console if console.is_terminal else Console(highlight=False, width=200)
            console.print(screen(sampler, figures(before, await sampler.sample(), sampler.names)))
            return
        with Live(
            screen(sampler, figures(None, before, sampler.names)), auto_refresh=False, screen=Console().is_terminal
        ) as live:
            while True:
                await asyncio.sleep(args.interval)
                try:
                    now = await sampler.sample()
                except CommandError as error:
                    live.update(Group(Text(str(error), "red"), Text("Retrying.", "dim")), refresh=True)
                    continue
                live.update(screen(sampler, figures(before, now, sampler.names)), refresh=True)
                before = now


def screen(sampler: Sampler, shown: Figures) -> RenderableType:
    """Lay out the figures."""
    parts: list[RenderableType] = [_head(sampler, shown), Text(), _requests(shown), Text(), _phases(shown), Text()]
    parts.append(_endpoints(shown))
    if shown.pairs:
        parts += [Text(), _pairs(shown)]
    return Group(*parts)


def _head(sampler: Sampler, shown: Figures) -> Text:
    flight = ", ".join(f"{count} {name}" for name, count in shown.in_flight.items())
    style = "bold red" if "NOT" in shown.kv else "green" if "verified by" in shown.kv else "yellow"
    return Text.assemble(
        (f"{sampler.name} ({sampler.location})  {shown.mode}  {shown.wiring}\n", "bold"),
        (f"{shown.ready} of {shown.gateways} gateways ready", "" if shown.ready else "bold red"),
        f"; in flight: {flight or 'nothing'}",
        (f"\n{shown.kv}" if shown.kv else "", style),
        *((f"\n{each}", "red") for each in shown.silent),
    )


def _requests(shown: Figures) -> Table:
    table = _table("outcome", "per s", "total")
    rows = [(name, *counts) for name, counts in (*shown.outcomes.items(), *shown.problems.items()) if counts[1]]
    for name, rate, total in rows:
        table.add_row(name, f"{rate:.1f}" if shown.seconds else "", str(total))
    if not rows:
        table.add_row("no request yet", "", "")
    return table


def _phases(shown: Figures) -> Table:
    table = _table("phase", "per s", *(f"p{100 * share:g}" for share in QUANTILES))
    for phase in shown.phases:
        rate = f"{phase.rate:.1f}" if shown.seconds else ""
        table.add_row(phase.name, rate, *(duration(value) for value in phase.quantiles))
    return table


def _endpoints(shown: Figures) -> Table:
    table = _table("engine", "role", "revision", "legs", "remote", "state", right=("legs", "remote"))
    for each in shown.endpoints:
        state = Text(each.state, _STYLES.get(each.state, "red"))
        if each.reason:
            state.append(f": {each.reason}", "dim")
        table.add_row(each.name, each.role, each.revision, str(each.legs), percent(each.remote), state)
    return table


def _pairs(shown: Figures) -> Table:
    table = _table("pair", "probe", "remote", "age", "phases", right=("remote", "age"))
    for each in shown.pairs[:MAX_PAIRS]:
        verdict = Text(each.verdict, _STYLES.get(each.verdict, "yellow"))
        if each.detail:
            verdict.append(f": {each.detail}", "dim")
        times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in each.seconds.items())
        row = (f"{each.prefill} → {each.decode}", verdict, percent(each.remote), f"{each.age:.0f} s", times)
        table.add_row(*row)
    if len(shown.pairs) > MAX_PAIRS:
        table.add_row(f"and {len(shown.pairs) - MAX_PAIRS} more", "", "", "", "")
    return table


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_edge=False)
    for number, column in enumerate(columns):
        to_right = column in right if right else number > 0
        table.add_column(column, header_style="dim", justify="right" if to_right else "left", overflow="fold")
    return table


def duration(seconds: float) -> str:
    """Format with three digits and a unit; a dash for NaN."""
    if math.isnan(seconds):
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s"


def percent(share: float | None) -> str:
    """Format a share as a percentage; a dash for None."""
    return "-" if share is None else f"{100 * share:.0f} %"
