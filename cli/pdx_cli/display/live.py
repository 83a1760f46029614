"""The live figures of a deployment, on a terminal or in a pipe."""

import argparse
import asyncio
import contextlib
import dataclasses
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from pdx_cli import interrupts, streams
from pdx_cli.display import keys
from pdx_cli.display.layout import Page, Title, page, problems
from pdx_cli.display.legend import Sort
from pdx_cli.display.terminal import Terminal, console, is_interactive, size
from pdx_cli.errors import CommandError
from pdx_cli.inputs import formats, target
from pdx_cli.inputs.target import InCluster, Local
from pdx_cli.inputs.times import Objectives
from pdx_cli.sources.client import Client
from pdx_cli.sources.figures import Figures, Sample, figures
from pdx_cli.sources.sampling import LocalSampler, Sampler

PIPE_WIDTH: Final = 120
"""Columns of an update that is not written to a terminal."""
_STARTING: Final = "`pdx up` is starting; its gateway does not answer yet."


def run(chosen: Local | InCluster, args: argparse.Namespace) -> int:
    """Show figures until q or Ctrl-C, or once. `args` are those of `pdx top`."""
    if args.once or args.format != "text" or not is_interactive(os.environ):
        asyncio.run(_print_updates(chosen, args))
        return 0
    screen = LiveScreen(Terminal(), args)
    with interrupts.handled(screen.on_signal):
        screen.terminal.enter()
        try:
            asyncio.run(screen.watch(chosen))
        finally:
            screen.terminal.leave()
    return 0


async def _print_updates(chosen: Local | InCluster, args: argparse.Namespace) -> None:
    async with _sampler_of(chosen) as sampler:
        async for shown in _updates(sampler, chosen, args.interval, once=args.once, slo=args.slo):
            if args.format == "text":
                width = size().columns if sys.stdout.isatty() else PIPE_WIDTH
                _print_page(page(_title(sampler, args), shown, width, Sort(args.sort)), console(width))
            else:
                _print_object(as_json(sampler, shown), args)
            if args.once:
                return


@asynccontextmanager
async def _sampler_of(chosen: Local | InCluster) -> AsyncIterator[Sampler]:
    """Connect to the deployment; raises CommandError with code 2."""
    if isinstance(chosen, Local):
        async with Client() as client:
            yield LocalSampler(chosen, client, time.monotonic)
        return
    from pdx_cli.sources.access import access_to  # a machine needs no client of Kubernetes
    from pdx_cli.sources.cluster import ClusterSampler

    async with access_to(chosen) as access:
        await access.object()
        yield ClusterSampler(access, time.monotonic)


def _print_page(shown: Page, output: Console) -> None:
    for each in (*shown.head, *shown.body, Text()):
        each.rstrip()
        output.print(each)


def _print_object(report: dict[str, Any], args: argparse.Namespace) -> None:
    if args.format == "json" and not args.once:
        print(formats.as_json(report, streams.encoding()), end="", flush=True)
        return
    separator = "---\n" if args.format == "yaml" and not args.once else ""
    print(f"{separator}{formats.printed(report, args.format, streams.encoding())}", end="", flush=True)


async def _updates(
    sampler: Sampler, chosen: Local | InCluster, interval: float, *, once: bool, slo: Objectives | None
) -> AsyncIterator[Figures]:
    """Yield the figures of each interval. A gateway that starts is awaited; a later failure is reported and retried."""
    before = await _first_sample(sampler, chosen, interval)
    while True:
        await asyncio.sleep(interval)
        try:
            now = await sampler.sample()
        except CommandError as error:
            failure = _failure(error, chosen)
            if once:
                raise failure from error
            print(f"pdx: {failure} Retrying.", file=sys.stderr, flush=True)
            continue
        yield figures(before, now, sampler.names, slo or Objectives())
        before = now


async def _first_sample(sampler: Sampler, chosen: Local | InCluster, interval: float) -> Sample:
    reported = False
    while True:
        try:
            return await sampler.sample()
        except CommandError as error:
            if not _is_starting(chosen):
                raise _failure(error, chosen) from error
        if not reported:
            print(f"{_STARTING} Retrying.", file=sys.stderr, flush=True)
            reported = True
        await asyncio.sleep(interval)


def _failure(error: CommandError, chosen: Local | InCluster) -> CommandError:
    """Return why a sample failed: for a run of this machine that has ended, how it ended."""
    return (target.ended(chosen, time.time()) if isinstance(chosen, Local) else None) or error


def _is_starting(chosen: Local | InCluster) -> bool:
    """Whether a `pdx up` that has not served yet still runs."""
    if not isinstance(chosen, Local) or chosen.run is None or chosen.run.serving:
        return False
    with contextlib.suppress(OSError):
        os.kill(chosen.run.pid, 0)
        return True
    return False


def _title(sampler: Sampler, args: argparse.Namespace) -> Title:
    return Title(sampler.name, sampler.location, _clock(), args.interval)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


class LiveScreen:
    """The state of `pdx top` in a terminal. Keys, signals and samples arrive as events in one queue."""

    def __init__(self, terminal: Terminal, args: argparse.Namespace) -> None:
        self.terminal = terminal
        self._args = args
        self._view = keys.View(Sort(args.sort))
        self._shown: Figures | None = None
        self._title: Title | None = None
        """Of the figures."""
        self._message = "connecting"
        self._events: asyncio.Queue[str | Figures | Exception] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._refresh = asyncio.Event()

    def on_signal(self, _: signal.Signals) -> None:
        """Stop, whatever the command does."""
        self._stopped = True
        if self._loop is not None and self._events is not None:
            self._loop.call_soon_threadsafe(self._events.put_nowait, "q")

    async def watch(self, chosen: Local | InCluster) -> None:
        """Show updates until q or a signal; raises CommandError if the deployment cannot be found."""
        self._events, self._loop = asyncio.Queue(), asyncio.get_running_loop()
        events = self._events
        with self.terminal.watched(self._on_keys, lambda: events.put_nowait("resize")):
            async with _sampler_of(chosen) as sampler:
                sampling = asyncio.create_task(self._sample(sampler, chosen))
                try:
                    await self._show(sampler, events)
                finally:
                    sampling.cancel()
                    await asyncio.gather(sampling, return_exceptions=True)

    async def _show(self, sampler: Sampler, events: "asyncio.Queue[str | Figures | Exception]") -> None:
        while not self._stopped:
            shown = self._draw()
            event = await events.get()
            if isinstance(event, Figures):
                self._shown, self._title, self._message = event, _title(sampler, self._args), ""
            elif isinstance(event, CommandError):
                self._report(event)
            elif isinstance(event, Exception):
                raise event
            elif event == "q" and not self._view.is_help:
                return
            elif event == " ":
                self._refresh.set()
            elif event != "resize":
                height = self.terminal.size[1]
                view = keys.fitted(self._view, shown, height)
                self._view = keys.pressed(view, event, keys.body_lines(shown, height))

    def _report(self, error: CommandError) -> None:
        """Show why there is no answer; the figures, if there are any, are past."""
        self._message = f"{error} Retrying."
        if self._title is not None and not self._title.silent_since:
            self._title = dataclasses.replace(self._title, silent_since=_clock())

    def _draw(self) -> Page:
        width, height = self.terminal.size
        shown = Page((), ())
        if self._shown is not None and self._title is not None:
            shown = page(self._title, self._shown, width, self._view.sort)
        self.terminal.draw(keys.screen(self._view, shown, width, height, self._message))
        return shown

    def _on_keys(self, data: bytes) -> None:
        assert self._events is not None, "keys are read while the queue exists"
        for key in keys.read_keys(data) if data else ["q"]:  # no data: the terminal is gone
            self._events.put_nowait(key)

    async def _sample(self, sampler: Sampler, chosen: Local | InCluster) -> None:
        """Put the figures of each interval into the queue, or why there are none."""
        assert self._events is not None, "sampling starts after the queue exists"
        before: Sample | None = None
        while True:
            try:
                now = await sampler.sample()
                self._events.put_nowait(figures(before, now, sampler.names, self._args.slo or Objectives()))
                before = now
            except CommandError as error:
                starting = before is None and _is_starting(chosen)
                self._events.put_nowait(CommandError(_STARTING) if starting else _failure(error, chosen))
            except Exception as error:
                self._events.put_nowait(error)
            self._refresh.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._refresh.wait(), self._args.interval)


def as_json(sampler: Sampler, shown: Figures) -> dict[str, Any]:
    """Return the figures for programs: seconds, shares from 0 to 1, null where a figure is unknown."""
    first = shown.phase("first_token")
    quantiles = first.quantiles if first else (math.nan,) * 3
    report = {
        "name": sampler.name,
        "location": sampler.location,
        "mode": shown.mode,
        "wiring": shown.wiring,
        "gateways": {"ready": shown.ready, "total": shown.gateways},
        "problems": list(problems(shown)),
        "inFlight": dict(shown.in_flight),
        "seconds": shown.seconds,
        "requests": {name: {"perSecond": rate, "total": total} for name, (rate, total) in shown.outcomes.items()},
        "failures": {name: {"perSecond": rate, "total": total} for name, (rate, total) in shown.problems.items()},
        "ttftSeconds": dict(zip(("p50", "p90", "p99"), quantiles, strict=True)),
        "phases": [dataclasses.asdict(phase) for phase in shown.phases],
        "engines": [{**dataclasses.asdict(each), "healthy": each.is_healthy} for each in shown.endpoints],
        "pairs": [{**dataclasses.asdict(pair), "verified": pair.is_verified} for pair in shown.pairs],
    }
    finite: dict[str, Any] = _without_nan(report)
    return finite


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
