"""The clients of `impatience` in front of vllm-router, with the same engines and loads.

`python -m benchmarks.soak.impatience_peer` takes about twenty minutes. Nothing is checked: its line of results
shows the peer's curve beside PDX's. Between two loads the engines finish what they have.
"""

import asyncio
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from benchmarks.gateway import processes
from benchmarks.gateway.commits import CHECKOUT
from benchmarks.gateway.gateways import Engines as Ports
from benchmarks.gateway.gateways import vllm_router
from benchmarks.soak.engines import Engines
from benchmarks.soak.frame import eventually
from benchmarks.soak.impatience import Plan, Report, begin, engines_of, offer, watch_legs
from benchmarks.soak.program import free_port
from benchmarks.soak.results import print_line, record
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address

_START_SECONDS: Final = 60.0
_REST_SECONDS: Final = 600.0
"""Legs of clients that are gone may fill the prefill engines for minutes."""


async def run(plan: Plan) -> Report:
    """Run every load."""
    report = begin(plan)
    report.gateway = "vllm-router"
    engines, listen = Engines(plan.order), Address("127.0.0.1", free_port())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engines.close)
        for role, sim in engines_of(plan):
            await engines.add(role, sim)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = (tuple(int(e.url.rpartition(":")[2]) for e in engines.of(role)) for role in (Role.PREFILL, Role.DECODE))
        command = vllm_router("round_robin")(Ports(*ports), listen.port, folder)
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        process = processes.start(command.line, cores, folder / "log", command.env, CHECKOUT)
        stack.push_async_callback(asyncio.to_thread, processes.end, process)
        if not await eventually(lambda: _accepts(listen), _START_SECONDS):
            raise RuntimeError(f"vllm-router does not start: {(folder / 'log').read_text()[-500:]}")
        watch = asyncio.create_task(watch_legs(report, engines))
        for load in plan.loads:
            seen = await offer(report, listen, load)
            sys.stderr.write(f"{load:g} x: {report.answers[load]:.2f} answers/s, {sorted(seen)}\n")
            if not await eventually(lambda: _rests(engines), _REST_SECONDS):
                sys.stderr.write(f"the engines still work {_REST_SECONDS:g} s after load {load:g}\n")
        watch.cancel()
    return report


async def _accepts(listen: Address) -> bool:
    try:
        _, writer = await asyncio.open_connection(listen.host, listen.port)
    except OSError:
        return False
    writer.close()
    return True


async def _rests(engines: Engines) -> bool:
    return not any(engine.counts.running_now + engine.counts.waiting_now for engine in engines.all)


if __name__ == "__main__":
    result = asyncio.run(run(Plan(Order.PREFILL_FIRST)))
    print_line("impatience", result.line())
    record("impatience", result.line())
