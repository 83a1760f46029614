"""`pdx top`: a deployment, live on the terminal."""

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
from pdx_cli.sources.sampling import Source, opened

EPILOG: Final = f"""\
examples:
  pdx top                            what `pdx up` runs here
  pdx top qwen -n llm
  kubectl pdx top qwen -n llm --interval 5
  pdx top --admin http://127.0.0.1:9090 --once

{target.WHERE}

Phases are of the requests that ended since the last picture; `outside` is the share of a decode engine's prompt tokens
that came through the connector. Ctrl-C ends it."""

SHORTEST: Final = 0.1
LONGEST: Final = 3600.0
MOST_PAIRS: Final = 12
"""Rows of pairs; the broken ones come first."""
_STYLES: Final = {"Warm": "green", "Warming": "yellow", "Suspect": "yellow", "verified": "green", "broken": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pdx top`."""
    target.add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="print one picture, of one interval, and end")
    parser.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="between two pictures (default: %(default)g)"
    )
    parser.epilog = EPILOG


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST <= value <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is no time; write seconds from {SHORTEST:g} to {LONGEST:g}")
    return value


def run(args: argparse.Namespace) -> int:
    """Show pictures until Ctrl-C, or one."""
    try:
        asyncio.run(_watch(args))
    except KeyboardInterrupt:
        return 0
    return 0


async def _watch(args: argparse.Namespace) -> None:
    async with opened(target.target_of(args), time.monotonic) as source:
        before = await source.sample()
        if args.once:
            await asyncio.sleep(args.interval)
            console = Console(highlight=False)
            # A picture that is piped on keeps its columns.
            console = console if console.is_terminal else Console(highlight=False, width=200)
            console.print(screen(source, figures(before, await source.sample(), source.names)))
            return
        with Live(
            screen(source, figures(None, before, source.names)), auto_refresh=False, screen=Console().is_terminal
        ) as live:
            while True:
                await asyncio.sleep(args.interval)
                try:
                    now = await source.sample()
                except CommandError as error:
                    live.update(Group(Text(str(error), "red"), Text("It is asked again.", "dim")), refresh=True)
                    continue
                live.update(screen(source, figures(before, now, source.names)), refresh=True)
                before = now


def screen(source: Source, shown: Figures) -> RenderableType:
    """One picture."""
    parts: list[RenderableType] = [_head(source, shown), Text(), _requests(shown), Text(), _phases(shown), Text()]
    parts.append(_endpoints(shown))
    if shown.pairs:
        parts += [Text(), _pairs(shown)]
    return Group(*parts)


def _head(source: Source, shown: Figures) -> Text:
    flight = ", ".join(f"{count} {name}" for name, count in shown.in_flight.items())
    style = "bold red" if "NOT" in shown.kv else "green" if "verified by" in shown.kv else "yellow"
    return Text.assemble(
        (f"{source.name} ({source.place})  {shown.mode}  {shown.wiring}\n", "bold"),
        (f"{shown.ready} of {shown.gateways} gateways ready", "" if shown.ready else "bold red"),
        f"; in flight: {flight or 'nothing'}",
        (f"\n{shown.kv}" if shown.kv else "", style),
        *((f"\n{each}", "red") for each in shown.silent),
    )


def _requests(shown: Figures) -> Table:
    table = _table("outcome", "per s", "total")
    rows = [(name, *told) for name, told in (*shown.outcomes.items(), *shown.troubles.items()) if told[1]]
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
    table = _table("engine", "role", "revision", "legs", "outside", "state", right=("legs", "outside"))
    for each in shown.endpoints:
        state = Text(each.state, _STYLES.get(each.state, "red"))
        if each.reason:
            state.append(f": {each.reason}", "dim")
        table.add_row(each.name, each.role, each.revision, str(each.legs), percent(each.outside), state)
    return table


def _pairs(shown: Figures) -> Table:
    table = _table("pair", "canary", "outside", "age", "phases", right=("outside", "age"))
    for each in shown.pairs[:MOST_PAIRS]:
        verdict = Text(each.verdict, _STYLES.get(each.verdict, "yellow"))
        if each.detail:
            verdict.append(f": {each.detail}", "dim")
        times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in each.seconds.items())
        row = (f"{each.prefill} → {each.decode}", verdict, percent(each.outside), f"{each.age:.0f} s", times)
        table.add_row(*row)
    if len(shown.pairs) > MOST_PAIRS:
        table.add_row(f"and {len(shown.pairs) - MOST_PAIRS} more", "", "", "", "")
    return table


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_edge=False)
    for number, column in enumerate(columns):
        to_right = column in right if right else number > 0
        table.add_column(column, header_style="dim", justify="right" if to_right else "left", overflow="fold")
    return table


def duration(seconds: float) -> str:
    """Three digits and a unit; a dash for nothing."""
    if math.isnan(seconds):
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s"


def percent(share: float | None) -> str:
    """A share as a percentage; a dash for nothing."""
    return "-" if share is None else f"{100 * share:.0f} %"
