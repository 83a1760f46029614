"""`pdx top` in a terminal while a gateway does not answer."""

import argparse
import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.text import Text

from pdx_cli.display.lines import BAD, BAR
from pdx_cli.display.live import LiveScreen
from pdx_cli.display.terminal import Terminal
from pdx_cli.errors import CommandError
from pdx_cli.inputs.target import Local
from pdx_cli.runs.run_record import Process, Run, RunDirectory
from pdx_cli.sources.figures import Figures, Sample
from tests.unit.cli.display.test_layout import HEALTHY
from tests.unit.cli.runs import records

ERROR = "The gateway cannot be queried: http://127.0.0.1:1/pdx/state did not answer."
RUN = replace(records.RUN, pid=os.getpid(), processes=())
ARGS = argparse.Namespace(sort="state", interval=60.0)


class Unreachable:
    """Samples a gateway that does not answer."""

    name = "tiny"
    location = "this machine"
    names: Mapping[str, str] = {}

    async def sample(self) -> Sample:
        """Fail."""
        raise CommandError(ERROR)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        pytest.param(RUN, "`pdx up` is starting; its gateway does not answer yet.", id="starting"),
        pytest.param(replace(RUN, serving=True), ERROR, id="serving"),
        pytest.param(None, ERROR, id="not started by pdx up"),
    ],
)
async def test_a_gateway_that_starts_is_no_error(run: Run | None, message: str) -> None:
    assert await _message(run) == message


async def _message(run: Run | None) -> str:
    """Return what the screen receives instead of figures."""
    screen = LiveScreen(Terminal(), ARGS)
    screen._events = asyncio.Queue()
    sampling = asyncio.create_task(screen._sample(Unreachable(), Local("tiny", RUN.admin, run)))
    try:
        return str(await screen._events.get())
    finally:
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling


async def test_a_run_that_has_ended_is_named(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "tiny")
    log = Process("gateway", 2**22 + 1, RUN.admin, str(directory.log("gateway")))
    run = replace(RUN, serving=True, processes=(log,))
    with directory.held("tiny"):
        directory.write(run)
        assert await _message(run) == ERROR
    rest = rf"Its logs are in {directory.logs}; start it again with `pdx up FILE`\."
    assert re.fullmatch(rf"tiny ended \d+ s ago\. {rest}", await _message(run))


class Recorded:
    """A terminal that keeps what it was to show."""

    size = (80, 40)

    def __init__(self) -> None:
        self.frames: list[Sequence[Text]] = []

    def draw(self, lines: Sequence[Text]) -> None:
        """Keep the lines."""
        self.frames.append(lines)


async def test_figures_are_past_while_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(["12:00:00", "12:00:02", "12:00:09"])
    monkeypatch.setattr("pdx_cli.display.live._clock", lambda: next(clock))
    terminal = Recorded()
    screen = LiveScreen(cast("Terminal", terminal), ARGS)
    events: asyncio.Queue[str | Figures | Exception] = asyncio.Queue()
    for event in (HEALTHY, CommandError(ERROR), CommandError(ERROR), HEALTHY, "q"):
        events.put_nowait(event)
    await screen._show(Unreachable(), events)
    _, answered, *silent, again = terminal.frames
    assert [frame[1].plain[:10] for frame in (answered, again)] == ["OK  6 of 6"] * 2
    assert [frame[0].plain.split()[-4] for frame in (answered, *silent, again)] == ["12:00:00"] * 3 + ["12:00:09"]
    for frame in silent:
        assert frame[1].plain == "NO ANSWER since 12:00:02. The figures are from 12:00:00."
        assert frame[1].spans[0].style == BAD
        styles = {each.style for each in frame[2:-2] if each.plain.strip()}
        assert styles == {"dim", BAR}
