"""Bursts of streams on engines that can run all of them: what the first one waits longer than the third.

By then the limits are learned. Each start has a new gateway and new engines.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import conclude, each_role, setup
from benchmarks.soak.traffic import Traffic
from pdx_api.names import Order
from pdx_proxy.config.settings import Settings

BURSTS: Final = 3
ENGINES: Final = 2
TOKENS: Final = 8
IDLE_SECONDS: Final = 1.0
"""Between warm-up and the first burst: engines have been read once."""
SIM: Final = replace(
    BASE,
    jitter=0.0,
    prefill_base_seconds=0.1,
    prefill_token_seconds=0.0,
    prefill_slots=256,
    decode_token_seconds=0.2,
    num_blocks=1 << 17,
    lease_seconds=60.0,
    decoder_ttl_seconds=480.0,
    side_channel_timeout=30.0,
)
"""Each runs 256 requests, so two run all of the largest burst."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Some starts with bursts of one size."""

    order: Order
    streams: int
    known: bool
    """Whether the gateway knows how many requests an engine runs."""
    starts: int = 5
    beyond: float = 0.0
    """Seconds by which the first burst may be later in addition."""

    @property
    def most(self) -> float:
        """TTFT p90 of the first burst, as a multiple of that of the third."""
        return 1.25 if self.known else 2.0


SHORT: Final = Plan(Order.PREFILL_FIRST, 64, known=True, starts=1, beyond=0.3)
"""A start without a warm process, on a busy machine."""


@dataclass
class Report(frame.Report[Plan]):
    """What the starts showed."""

    gateway: str = "PDX"
    first: list[float] = field(default_factory=list)
    """TTFT p90 of the first burst of each start, in seconds."""
    third: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median of all starts."""
        return median(first / third for first, third in zip(self.first, self.third, strict=True))

    def line(self) -> dict[str, Any]:
        """For the results."""
        plan = self.plan
        return {
            "gateway": self.gateway,
            "order": plan.order,
            "streams": plan.streams,
            "known": plan.known,
            "first": self.first,
            "third": self.third,
            "ratio": self.ratio,
        }


async def run(plan: Plan, log: Path) -> Report:
    """Run all starts."""
    report = Report(plan)
    for number in range(plan.starts):
        engines = Engines(plan.order, known=plan.known)
        async with setup(engines, each_role(SIM, ENGINES), Settings(), log.with_suffix(f".{number}")) as [gateway]:
            await asyncio.sleep(IDLE_SECONDS)
            waits = [await burst(report, Traffic([gateway.listen], TOKENS, streams=1)) for _ in range(BURSTS)]
            report.first.append(waits[0])
            report.third.append(waits[-1])
            await conclude(report, [gateway])
    excess = median(first - plan.most * third for first, third in zip(report.first, report.third, strict=True))
    report.expect(excess <= plan.beyond, f"TTFT p90 of the first bursts {report.first}, of the third {report.third}")
    return report


async def burst(report: Report, traffic: Traffic) -> float:
    """Send the streams at once, and return the p90 of their TTFT."""
    await asyncio.gather(*(traffic.send() for _ in range(report.plan.streams)))
    strange = [each.detail for each in traffic.attempts if each.saw is not Saw.TEXT]
    report.expect(not strange, f"not answered: {strange[:3]}")
    return _p90([each.first - each.began for each in traffic.attempts])


def _p90(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 9 // 10]
