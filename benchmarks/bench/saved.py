"""The saved result of the README's figure: a comparison on simulated engines behind real gateways, in virtual time."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.bench.virtual_time import run_virtually
from pdx_api.names import Role
from pdx_api.settings.gateway import Verification
from pdx_api.version import pdx_version
from pdx_cli.bench.analysis.arms import Arm, ArmResult
from pdx_cli.bench.analysis.steps import Slo
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Shape
from pdx_cli.bench.load.workload import Fixed
from pdx_cli.bench.measure import ArmRun, Observer, Plan
from pdx_cli.bench.results.document import Run, document
from pdx_cli.bench.targets import by_url
from pdx_proxy.config.settings import Address, EndpointSpec, Settings
from pdx_proxy.process.control import Control
from pdx_sim import SimEngine, SimSettings
from pdx_sim.profiles import LLAMA_70B

ARMS: Final = (
    Arm("aggregated 4, chunks of 512", aggregated=4, chunk=512),
    Arm("P:D 1:3", split=True, prefill=1, decode=3),
    Arm("P:D 2:2", split=True, prefill=2, decode=2),
)
PLAN: Final = Plan(Fixed(4000, 60), Slo(2.0, 0.03), 40.0, 8.0, 2, 0)
START: Final = 4.0
"""Requests per second from which to search."""
_BUSY: Final = 5e-4
"""Seconds that a sequence adds to a step: more than in the profile, so that few requests saturate an engine."""


def save(path: Path, date: str) -> None:
    """Measure all arms and write the result."""
    results = tuple(run_virtually(_measure(arm)) for arm in ARMS)
    run = Run(
        name="simulated Llama 3.3 70B",
        date=date,
        version=pdx_version(),
        model="sim",
        load=PLAN.load.name,
        slo=PLAN.slo,
        step_seconds=PLAN.seconds,
        warm_up=PLAN.warm_up,
        repeats=PLAN.repeats,
        seed=PLAN.seed,
        results=tuple(replace(each, timeline={}) for each in results),
        devices=4,
    )
    path.write_text(json.dumps(document(run)) + "\n", encoding="utf-8")


async def _measure(arm: Arm) -> ArmResult:
    async with _serving(arm) as (url, admin), by_url(url, admin) as target:
        shape, observer = Shape("sim"), Observer(lambda *_: None, lambda *_: None)
        run = ArmRun(arm, Server.of(url), shape, target.meters, PLAN, observer, START)
        run.clock = asyncio.get_running_loop().time
        await run.run()
        return run.result()


@asynccontextmanager
async def _serving(arm: Arm) -> AsyncIterator[tuple[str, str]]:
    """The arm's engines and a gateway that has warmed them up; yields both URLs of the gateway."""
    counts = {Role.PREFILL: arm.prefill, Role.DECODE: arm.decode, Role.AGGREGATED: arm.aggregated}
    base = replace(LLAMA_70B.apply(SimSettings()), step_sequence_seconds=_BUSY, max_model_len=8192)
    base = replace(base, max_num_batched_tokens=arm.chunk or base.max_num_batched_tokens)
    engines = [SimEngine(replace(base, role=role)) for role, count in counts.items() for _ in range(count)]
    control: Control | None = None
    try:
        for engine in engines:
            await engine.start()
        specs = tuple(EndpointSpec(Address("127.0.0.1", each.port), each.settings.role) for each in engines)
        free, quiet = Address("127.0.0.1", 0), Verification(period_seconds=0)
        settings = Settings(listen=free, admin=free, endpoints=specs, verification=quiet, debug_headers=True)
        random.seed(0)
        control = await Control.start(settings, None)
        while not all(each.warm for each in control.registry.snapshot.everything):  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.1)
        yield f"http://{control.listen}", f"http://{control.admin}"
    finally:
        if control is not None:
            await control.stop()
        for engine in engines:
            await engine.stop()
