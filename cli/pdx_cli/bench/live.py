"""Watches a deployment without sending anything: its counters before and after, and its load meanwhile."""

import asyncio
from typing import Final

from pdx_api.names import Role
from pdx_cli.bench.analysis.advise import Live
from pdx_cli.bench.statistics import mean
from pdx_cli.bench.targets import Target
from pdx_cli.errors import CommandError

_POLL_SECONDS: Final = 1.0


async def observe_live(target: Target, seconds: float) -> Live:
    """Return what happened in so many seconds; raises CommandError if the metrics cannot be read."""
    before = await target.meters.read()
    if before is None:
        raise CommandError(f"{target.name} has no metrics that can be read; --advise needs a gateway of PDX.", code=2)
    generates = Role.DECODE if target.arm.split else Role.AGGREGATED
    running: list[float] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() - began < seconds:
        await asyncio.sleep(min(_POLL_SECONDS, seconds))
        engines = (await target.meters.engines()).values()
        running += [engine.metrics.running or 0.0 for engine in engines if engine.role is generates]
    after = await target.meters.read()
    if after is None:
        raise CommandError(f"The gateway of {target.name} does not answer any more.")
    first = Role.PREFILL if target.arm.split else Role.AGGREGATED
    return Live(
        target.arm,
        loop.time() - began,
        after.totals(first) - before.totals(first),
        after.totals(Role.DECODE) - before.totals(Role.DECODE),
        mean(running) if running else 0.0,
    )
