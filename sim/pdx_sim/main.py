"""The simulated engine as a process."""

import asyncio
import signal
import sys

import uvloop

from pdx_sim.engine import ListenError, SimEngine
from pdx_sim.settings import SimSettings


def run(settings: SimSettings) -> int:
    """Serve until SIGTERM or SIGINT; 1 and one sentence on stderr when an address cannot be had."""
    try:
        uvloop.run(_serve(settings))
    except ListenError as error:
        sys.stderr.write(f"pdx sim: {error}.\n")
        return 1
    return 0


async def _serve(settings: SimSettings) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with SimEngine(settings):
        await told.wait()
