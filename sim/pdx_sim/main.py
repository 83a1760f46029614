"""The simulated engine as a process."""

import asyncio
import signal

import uvloop

from pdx_sim.engine import SimEngine
from pdx_sim.settings import SimSettings


def run(settings: SimSettings) -> int:
    """Serve until SIGTERM or SIGINT; says the exit status."""
    uvloop.run(_serve(settings))
    return 0


async def _serve(settings: SimSettings) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with SimEngine(settings):
        await told.wait()
