"""vllm-router in front of simulated engines, for campaigns that compare it with PDX."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.gateway import processes
from benchmarks.gateway.commits import CHECKOUT
from benchmarks.gateway.gateways import Engines as Ports
from benchmarks.gateway.gateways import vllm_router
from benchmarks.soak.engines import Engines
from benchmarks.soak.frame import eventually
from benchmarks.soak.program import free_port
from pdx_api.names import Role
from pdx_proxy.config.settings import Address

NAME: Final = "vllm-router"
_START_SECONDS: Final = 60.0


@asynccontextmanager
async def started(engines: Engines) -> AsyncIterator[Address]:
    """Start vllm-router for these engines, and yield its address; raises RuntimeError if it does not start."""
    listen = Address("127.0.0.1", free_port())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ports = (tuple(port_of(each.url) for each in engines.of(role)) for role in (Role.PREFILL, Role.DECODE))
        command = vllm_router("round_robin")(Ports(*ports), listen.port, folder)
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        process = processes.start(command.line, cores, folder / "log", command.env, CHECKOUT)
        try:
            if not await eventually(lambda: _accepts(listen), _START_SECONDS):
                raise RuntimeError(f"vllm-router does not start: {(folder / 'log').read_text()[-500:]}")
            yield listen
        finally:
            await asyncio.to_thread(processes.end, process)


def port_of(url: str) -> int:
    """Return the port of an engine's URL."""
    return int(url.rpartition(":")[2])


async def _accepts(listen: Address) -> bool:
    try:
        _, writer = await asyncio.open_connection(listen.host, listen.port)
    except OSError:
        return False
    writer.close()
    return True
