"""Decode engines of different sizes under one gateway or two, with three times the load that they can serve.

Side by side: one that runs 4 sequences, one 64, one 1,024, and one whose KV cache holds 40.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import conclude, setup
from benchmarks.soak.program import GatewayProcess
from benchmarks.soak.traffic import Traffic, within
from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Queue
from pdx_proxy.config.settings import Limits, Settings
from pdx_sim import SimEngine, SimSettings

TIMES: Final = 3
_PREFILL: Final = 4
_PROMPT: Final = "x" * 860
_BLOCKS: Final = 16
"""Blocks of a request: at most 220 tokens of its prompt, and its answer."""
_SIM: Final = replace(
    BASE,
    jitter=0.0,
    prefill_base_seconds=0.02,
    prefill_token_seconds=0.0,
    prefill_slots=256,
    max_model_len=512,
    lease_seconds=30.0,
    decoder_ttl_seconds=480.0,
    side_channel_timeout=5.0,
)
_SAMPLE_SECONDS: Final = 0.1
_QUEUED_SHARE: Final = 0.1
_LATE: Final = 20.0
"""Seconds until a client gives up, beyond its longest wait in the gateway and three times its answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    order: Order
    gateways: int = 1
    overload: float = 120.0
    fills: float = 30.0
    """From the beginning of the overload until every engine runs what it can."""
    tokens: int = 8
    token: float = 5.0
    """The time of one token: an answer takes `tokens` of them, on average."""
    varies: float = 0.5
    """By which share answers are shorter or longer. One process simulates all engines and clients: it cannot replace a
    thousand requests that end together, nor pass on a thousand tokens in a second."""
    sequences: Sequence[int] = (4, 64, 1024)
    """What each D runs, but for the one that its KV cache bounds."""
    cached: int = 40
    """What that one runs."""
    runs: float = 0.95
    """Least share of what it can run that an engine runs."""
    queues: int = 4
    """An engine's own queue may hold so many, or a tenth of what it can run."""
    waits: float = Queue.max_wait_seconds
    """Longest wait in the gateway."""
    known: bool = True
    """Whether the gateway knows how many sequences an engine runs; it never knows what the KV cache holds."""


SHORT: Final = Plan(
    Order.PREFILL_FIRST,
    overload=9.0,
    fills=4.0,
    tokens=10,
    token=0.3,
    sequences=(2, 24),
    cached=8,
    runs=0.75,
    queues=8,
    waits=2.0,
)
"""Seconds, on a busy machine. Requests that are divided equally put dozens into the queue of the smallest."""


@dataclass
class Watched:
    """What was seen of one engine."""

    can_run: int
    running: list[int] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)

    def see(self, engine: SimEngine) -> None:
        """Add one moment."""
        counts = engine.counts
        self.running.append(counts.running_now)
        self.queued.append(counts.waiting_now - counts.loading_now)


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed."""

    engines: list[Watched] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """For the results."""
        return {
            "order": self.plan.order,
            "gateways": self.plan.gateways,
            "seconds": self.plan.overload,
            "engines": [
                {"canRun": each.can_run, "running": mean(each.running), "queued": max(each.queued)}
                for each in self.engines
            ],
        }


async def run(plan: Plan, log: Path) -> Report:
    """Overload the engines and watch them."""
    report = Report(plan, engines=[Watched(number) for number in (*plan.sequences, plan.cached)])
    engines = Engines(plan.order, known=plan.known)
    settings = Settings(limits=Limits(max_wait_seconds=plan.waits))
    async with setup(engines, _sims(plan), settings, log, plan.gateways) as gateways:
        await _overload(report, gateways, engines.of(Role.DECODE))
        await conclude(report, gateways)
    _check(report)
    return report


def _sims(plan: Plan) -> list[tuple[Role, SimSettings]]:
    sim = replace(_SIM, decode_token_seconds=plan.token)
    by_cache = replace(sim, max_running=1024, num_blocks=_BLOCKS * plan.cached)
    decodes = (*(replace(sim, max_running=number) for number in plan.sequences), by_cache)
    return [(Role.PREFILL, _SIM)] * _PREFILL + [(Role.DECODE, each) for each in decodes]


async def _overload(report: Report, gateways: list[GatewayProcess], decodes: list[SimEngine]) -> None:
    plan = report.plan
    rate = TIMES * sum(each.can_run for each in report.engines) / (plan.tokens * plan.token)
    numbers = itertools.count()
    patience = plan.waits + 3 * plan.tokens * plan.token + _LATE
    tokens, varies = plan.tokens, plan.varies
    loads = [Traffic([each.listen], tokens, _PROMPT, numbers, patience, varies=varies) for each in gateways]
    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(load.open_loop(rate / len(gateways), within(plan.overload)))
        await asyncio.sleep(plan.fills)
        over = within(plan.overload - plan.fills)
        while not over():
            for watched, engine in zip(report.engines, decodes, strict=True):
                watched.see(engine)
            await asyncio.sleep(_SAMPLE_SECONDS)
    for load in loads:
        await load.finish()
        strange = [each.detail for each in load.attempts if each.detail]
        report.expect(not strange, f"neither answered nor shed: {strange[:5]}")


def _check(report: Report) -> None:
    plan = report.plan
    for each in report.engines:
        running, queued, name = mean(each.running), max(each.queued), f"the D that can run {each.can_run}"
        report.expect(running >= plan.runs * each.can_run, f"{name} runs {running:.1f}")
        report.expect(queued <= max(plan.queues, _QUEUED_SHARE * each.can_run), f"{queued} wait in {name}")
    report.expect(not report.ejections, f"{report.ejections} healthy engines ejected")
