"""Decode engines of different sizes under one gateway or two, with three times the load that they can serve.

One runs 4 sequences, one 64, one 1,024, and one as many as its KV cache holds. What each can run is measured first,
with requests sent directly to it.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.soak.campaign import check_log, come_to_idle, warm
from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.program import GatewayProcess
from benchmarks.soak.traffic import Traffic, within
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Settings, Verification
from pdx_sim import SimEngine, SimSettings

TIMES: Final = 3
_PREFILL: Final = 4
_SEQUENCES: Final = (4, 64, 1024)
_PROMPT: Final = "x" * 1000
"""253 tokens, 16 blocks: a cache of 640 holds 40 requests."""
_SIM: Final = replace(
    BASE,
    jitter=0.0,
    prefill_base_seconds=0.02,
    prefill_token_seconds=0.0,
    prefill_slots=256,
    lease_seconds=30.0,
    decoder_ttl_seconds=480.0,
    side_channel_timeout=5.0,
)
_SAMPLE_SECONDS: Final = 0.1
_MORE: Final = 16
"""Requests beyond what an engine can run."""
_QUEUED: Final = 4
"""An engine's own queue may hold so many, or a tenth of what it can run."""
_QUEUED_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    order: Order
    gateways: int = 1
    overload: float = 120.0
    fills: float = 30.0
    """From the beginning of the overload until every engine runs what it can."""
    tokens: int = 20
    token: float = 1.0
    """The time of one token: an answer takes `tokens` of them."""
    sequences: Sequence[int] = _SEQUENCES
    runs: float = 0.95
    """Least share of what it can run that an engine runs."""
    seed: int = 1


@dataclass
class Watched:
    """What was seen of one engine."""

    can_run: float = 0.0
    running: list[int] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)

    def see(self, engine: SimEngine) -> None:
        """Add one moment."""
        counts = engine.counts
        self.running.append(counts.running_now)
        self.queued.append(counts.waiting_now - counts.loading_now)


@dataclass
class Report:
    """What the run showed."""

    plan: Plan
    engines: dict[str, Watched] = field(default_factory=dict)
    state: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, text: str) -> None:
        """Keep a failure."""
        if not holds:
            self.failures.append(text)

    def line(self) -> dict[str, Any]:
        """For the results."""
        return {
            "order": self.plan.order,
            "gateways": self.plan.gateways,
            "seconds": self.plan.overload,
            "engines": [
                {"canRun": each.can_run, "running": mean(each.running), "queued": max(each.queued)}
                for each in self.engines.values()
            ],
        }


async def run(plan: Plan, log: Path) -> Report:
    """Measure, overload and watch; the report's `failures` list what did not hold."""
    report = Report(plan)
    engines = Engines(plan.order, random.Random(plan.seed), sim=_SIM)
    try:
        async with _gateways(plan, log) as gateways:
            await _add_engines(plan, engines)
            for gateway in gateways:
                gateway.set_engines(engines.specs.values())
                await warm(gateway, engines)
            decodes = {name: each for name, each in engines.live.items() if each.settings.role is Role.DECODE}
            report.engines = {name: Watched() for name in decodes}
            await asyncio.gather(*(_measure(report, engines, name) for name in decodes))
            await _overload(report, gateways, decodes)
            for gateway in gateways:
                await come_to_idle(report, gateway)
                report.state.append(await gateway.state())
                check_log(report, gateway.log)
    finally:
        await engines.close()
    _check(report)
    return report


@contextlib.asynccontextmanager
async def _gateways(plan: Plan, log: Path) -> AsyncIterator[list[GatewayProcess]]:
    settings = Settings(verification=Verification(period_seconds=0))
    async with contextlib.AsyncExitStack() as stack:
        logs = (log.with_suffix(f".{number}.log") for number in range(plan.gateways))
        yield [await stack.enter_async_context(GatewayProcess(settings, each)) for each in logs]


async def _add_engines(plan: Plan, engines: Engines) -> None:
    for _ in range(_PREFILL):
        await engines.add(Role.PREFILL)
    sim = replace(_SIM, decode_token_seconds=plan.token)
    by_cache = replace(sim, max_running=1024, num_blocks=640, max_model_len=1024)
    for engines.sim in (*(replace(sim, max_running=number) for number in plan.sequences), by_cache):
        await engines.add(Role.DECODE)


async def _measure(report: Report, engines: Engines, name: str) -> None:
    """What an engine runs when more requests than it can run are sent directly to it."""
    engine, seconds = engines.live[name], report.plan.tokens * report.plan.token
    settings: SimSettings = engine.settings
    in_cache = settings.num_blocks * settings.block_size * 4 // len(_PROMPT)
    direct = Traffic([engines.specs[name].address], report.plan.tokens, _PROMPT)
    load = asyncio.create_task(direct.closed_loop(min(settings.max_running, in_cache) + _MORE, 1.5 * seconds))
    await asyncio.sleep(seconds / 2)
    seen, over = Watched(), within(seconds)
    while not over():
        seen.see(engine)
        await asyncio.sleep(_SAMPLE_SECONDS)
    report.engines[name].can_run = mean(seen.running)
    await load


async def _overload(report: Report, gateways: list[GatewayProcess], decodes: dict[str, SimEngine]) -> None:
    plan = report.plan
    at_once = sum(each.can_run for each in report.engines.values())
    rate = TIMES * at_once / (plan.tokens * plan.token)
    numbers = itertools.count(1 << 20)
    loads = [Traffic([gateway.listen], plan.tokens, _PROMPT, numbers) for gateway in gateways]
    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(load.open_loop(rate / len(gateways), within(plan.overload)))
        await asyncio.sleep(plan.fills)
        watched = within(plan.overload - plan.fills)
        while not watched():
            for name, engine in decodes.items():
                report.engines[name].see(engine)
            await asyncio.sleep(_SAMPLE_SECONDS)
    for load in loads:
        await load.finish()
        strange = [each.detail for each in load.attempts if each.saw not in (Saw.TEXT, Saw.SHED)]
        report.expect(not strange, f"neither answered nor shed: {strange[:5]}")


def _check(report: Report) -> None:
    for name, each in report.engines.items():
        running, queued = mean(each.running), max(each.queued)
        report.expect(running >= report.plan.runs * each.can_run, f"{name} runs {running:.1f} of {each.can_run:.1f}")
        most = max(_QUEUED, _QUEUED_SHARE * each.can_run)
        report.expect(queued <= most, f"{queued} wait in {name}, which can run {each.can_run:.1f}")
    ejected = sum(sum(state["ejections"].values()) for state in report.state)
    report.expect(not ejected, f"{ejected} healthy engines ejected")
