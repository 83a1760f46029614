"""A client with a hundred connections beside one that sends one request at a time.

The first saturates P's and D's. The second is measured alone before, which gives the time of one service.
"""

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import conclude, each_role, eventually, setup
from benchmarks.soak.program import GatewayProcess
from benchmarks.soak.traffic import Traffic
from pdx_api.names import Order
from pdx_proxy.config.settings import Limits, Settings
from pdx_sim import SimSettings

_ENGINES: Final = 2
_SLOTS: Final = 4
_RUNNING: Final = 16
_TOKENS: Final = 20
_ALONE: Final = 5
"""Requests of the second client before the first comes."""
_CLIENTS: Final = ("192.0.2.1", "192.0.2.2")
_SATURATES_WITHIN: Final = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    order: Order
    seconds: float = 60.0
    connections: int = 100
    """Of the first client."""
    prefill: float = 0.5
    decode: float = 2.0
    """An answer. P's and D's then serve equally many requests."""
    services: float = 2.0
    """The p99 of the second client, in times of one service: its own, and at most one that it waits."""


SHORT: Final = Plan(Order.PREFILL_FIRST, seconds=4.0, connections=60, prefill=0.1, decode=0.4, services=4.0)
"""Without fair queues, the second client would wait for the 60 requests of the first."""


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed."""

    service: float = 0.0
    """Median duration of a request of the second client alone, in seconds."""
    second: list[float] = field(default_factory=list)
    """Durations of its requests beside the first client, in seconds."""
    first: int = 0
    """Answers to the first client."""

    @property
    def late(self) -> float:
        """The p99 of the second client, in seconds."""
        return quantiles(self.second, n=100, method="inclusive")[98] if len(self.second) > 1 else float("inf")

    def line(self) -> dict[str, Any]:
        """For the results."""
        return {
            "order": self.plan.order,
            "seconds": self.plan.seconds,
            "connections": self.plan.connections,
            "answers": [self.first, len(self.second)],
            "service": self.service,
            "p99": self.late,
        }


async def run(plan: Plan, log: Path) -> Report:
    """Measure the second client alone, then beside the first."""
    report = Report(plan)
    settings = Settings(limits=Limits(trusted_proxies=("127.0.0.0/8",)))
    async with setup(Engines(plan.order), each_role(_sim(plan), _ENGINES), settings, log) as [gateway]:
        await _measure(report, gateway)
        await conclude(report, [gateway])
    report.expect(not report.ejections, f"{report.ejections} healthy engines ejected")
    allowed = plan.services * report.service
    report.expect(report.late <= allowed, f"p99 {report.late:.2f} s, with a service of {report.service:.2f} s")
    return report


def _sim(plan: Plan) -> SimSettings:
    return replace(
        BASE,
        jitter=0.0,
        prefill_base_seconds=plan.prefill,
        prefill_token_seconds=0.0,
        prefill_slots=_SLOTS,
        max_running=_RUNNING,
        decode_token_seconds=plan.decode / _TOKENS,
        lease_seconds=30.0,
        decoder_ttl_seconds=480.0,
        side_channel_timeout=5.0,
    )


async def _measure(report: Report, gateway: GatewayProcess) -> None:
    numbers, plan = itertools.count(), report.plan
    first, second = (Traffic([gateway.listen], _TOKENS, "", numbers, client=name) for name in _CLIENTS)
    for _ in range(_ALONE):
        await second.send()
    report.service = median(each.ended - each.began for each in second.attempts)
    second.attempts.clear()
    load = asyncio.create_task(first.closed_loop(plan.connections, _SATURATES_WITHIN + plan.seconds))

    async def is_saturated() -> bool:
        return bool((await gateway.state())["inFlight"]["queued"])

    saturated = await eventually(is_saturated, within=_SATURATES_WITHIN)
    report.expect(saturated, "no request waits")
    await second.closed_loop(1, plan.seconds)
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    report.first = sum(each.saw is Saw.TEXT for each in first.attempts)
    report.second = [each.ended - each.began for each in second.attempts if each.saw is Saw.TEXT]
    strange = [each.detail or each.saw for each in second.attempts if each.saw is not Saw.TEXT]
    report.expect(not strange, f"the second client was not served: {strange[:3]}")
