"""The simulated engine as a process."""

import asyncio
import signal
import sys

import uvloop

from pdx_sim.engine import ListenError, SimEngine
from pdx_sim.settings import SimSettings


def run(settings: SimSettings) -> int:
    """Serve until SIGTERM or SIGINT. Returns 2, with one sentence on stderr, if an address cannot be used."""
    try:
        uvloop.run(_serve(settings))
    except ListenError as error:
        sys.stderr.write(f"pdx sim: {error}.\n")
        return 2
    return 0


async def _serve(settings: SimSettings) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with SimEngine(settings) as engine:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        sys.stdout.write(f"pdx sim: serving on http://{host}:{engine.port}\n")
        sys.stdout.flush()
        await stopped.wait()
