"""The clients of `impatience` in front of vllm-router, with the same engines and loads.

`python -m benchmarks.soak.impatience_peer` takes about twenty minutes. Nothing is checked: its line of results
shows the peer's curve beside PDX's. Between two loads the engines finish what they have.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Final

from benchmarks.soak import peer
from benchmarks.soak.engines import Engines
from benchmarks.soak.frame import eventually
from benchmarks.soak.impatience import Plan, Report, begin, engines_of, offer, watch_legs
from benchmarks.soak.results import print_line, record
from pdx_api.names import Order

_REST_SECONDS: Final = 600.0
"""Legs of clients that are gone may fill the prefill engines for minutes."""


async def run(plan: Plan) -> Report:
    """Run every load."""
    report = begin(plan)
    report.gateway = peer.NAME
    engines = Engines(plan.order)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engines.close)
        for role, sim in engines_of(plan):
            await engines.add(role, sim)
        listen = await stack.enter_async_context(peer.started(engines))
        watch = asyncio.create_task(watch_legs(report, engines))
        for load in plan.loads:
            seen = await offer(report, listen, load)
            sys.stderr.write(f"{load:g} x: {report.answers[load]:.2f} answers/s, {sorted(seen)}\n")
            if not await eventually(lambda: _rests(engines), _REST_SECONDS):
                sys.stderr.write(f"the engines still work {_REST_SECONDS:g} s after load {load:g}\n")
        watch.cancel()
    return report


async def _rests(engines: Engines) -> bool:
    return not any(engine.counts.running_now + engine.counts.waiting_now for engine in engines.all)


if __name__ == "__main__":
    result = asyncio.run(run(Plan(Order.PREFILL_FIRST)))
    print_line("impatience", result.line())
    record("impatience", result.line())
