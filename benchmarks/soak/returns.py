"""More streams than engines can run, whose clients come back when `Retry-After` says: how long until all are served."""

import asyncio
import time
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import conclude, each_role, setup
from benchmarks.soak.traffic import Traffic
from pdx_api.names import Order
from pdx_api.settings.gateway import Queue
from pdx_proxy.config.settings import Limits, Settings

_ENGINES: Final = 2
_RUNNING: Final = 4
"""Sequences of each D."""
_TOKENS: Final = 20
_MOST: Final = 1.25
"""Times the engines' own minimum."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    order: Order
    streams: int
    answer: float = 10.0
    waits: float = Queue.max_wait_seconds
    """Longest wait in the gateway."""
    beyond: float = 3.0
    """Beyond `_MOST` times the minimum."""

    @property
    def minimum(self) -> float:
        """How long the engines work on all streams at least."""
        return ceil(self.streams / (_ENGINES * _RUNNING)) * self.answer


SHORT: Final = Plan(Order.PREFILL_FIRST, 40, answer=1.0, waits=3.0)


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed."""

    seconds: float = 0.0
    """Until all were served."""
    retry_afters: list[int] = field(default_factory=list)
    """Each `Retry-After`."""

    def line(self) -> dict[str, Any]:
        """For the results."""
        plan = self.plan
        return {
            "order": plan.order,
            "streams": plan.streams,
            "answer": plan.answer,
            "minimum": plan.minimum,
            "seconds": self.seconds,
            "sheds": len(self.retry_afters),
            "longest": max(self.retry_afters, default=0),
        }


async def run(plan: Plan, log: Path) -> Report:
    """Send all streams at once."""
    report = Report(plan)
    sim = replace(
        BASE, jitter=0.0, max_running=_RUNNING, decode_token_seconds=plan.answer / _TOKENS, lease_seconds=60.0
    )
    settings = Settings(limits=Limits(max_wait_seconds=plan.waits))
    sims = each_role(replace(sim, decoder_ttl_seconds=480.0), _ENGINES)
    async with setup(Engines(plan.order), sims, settings, log) as [gateway]:
        traffic = Traffic([gateway.listen], _TOKENS, patience=10 * plan.minimum, streams=1)
        began = time.monotonic()
        await asyncio.gather(*(_until_served(traffic, report) for _ in range(plan.streams)))
        report.seconds = time.monotonic() - began
        await conclude(report, [gateway])
    most = _MOST * plan.minimum + plan.beyond
    report.expect(report.seconds <= most, f"all are served after {report.seconds:.1f} s, not {most:.1f} s")
    return report


async def _until_served(traffic: Traffic, report: Report) -> None:
    while (attempt := await traffic.send()).saw is Saw.SHED:
        report.retry_afters.append(attempt.retry_after)
        await asyncio.sleep(attempt.retry_after)
    report.expect(attempt.saw is Saw.TEXT, attempt.detail)
