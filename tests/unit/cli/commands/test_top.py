"""The messages of `pdx top` in a terminal while a gateway does not answer."""

import argparse
import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from pdx_cli.commands.top import LiveScreen
from pdx_cli.display.terminal import Terminal
from pdx_cli.errors import CommandError
from pdx_cli.inputs.target import Local
from pdx_cli.runs.run_record import Run
from pdx_cli.sources.figures import Sample

ERROR = "The gateway cannot be queried: http://127.0.0.1:1/pdx/state did not answer."
RUN = Run(
    name="tiny",
    pid=os.getpid(),
    started=0.0,
    mode="Disaggregated",
    connector="NIXL",
    order="PrefillFirst",
    engine="sim",
    model="tiny",
    endpoint="http://127.0.0.1:1",
    admin="http://127.0.0.1:1",
    processes=(),
)


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
    screen = LiveScreen(Terminal(coloured=False), argparse.Namespace(sort="state", interval=60.0))
    screen._events = asyncio.Queue()
    sampling = asyncio.create_task(screen._sample(Unreachable(), Local("tiny", RUN.admin, run)))
    try:
        assert str(await screen._events.get()) == message
    finally:
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
