"""Three times the load that the engines can serve, at default limits, and what healthy engines lose by it.

Capacity is the goodput of the same requests, one after the other, sent directly to the decode engines. Then the gateway
gets half of that, three times that, exactly that with clients that come back after `Retry-After`, and half again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import conclude, each_role, eventually, setup
from benchmarks.soak.program import GatewayProcess
from benchmarks.soak.traffic import Attempt, Traffic, first_event, goodput, last_begin, within
from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Queue
from pdx_proxy.config.settings import Limits, Settings

TIMES: Final = 3
_ENGINES: Final = 2
_RUNNING: Final = 16
_TOKENS: Final = 50
_SIM: Final = replace(
    BASE,
    jitter=0.0,
    prefill_base_seconds=0.05,
    prefill_token_seconds=0.0,
    prefill_slots=16,
    decode_token_seconds=0.02,
    max_running=_RUNNING,
    lease_seconds=30.0,
    decoder_ttl_seconds=480.0,
    side_channel_timeout=5.0,
)
"""Two D's of these answer about 30 requests a second."""
_SERVED: Final = 0.9
"""Least share of the clients that come back and are then served."""
_EMPTY_WITHIN: Final = 300.0
_RAMP: Final = 5.0
"""Seconds of the overload that do not count: queues fill."""
_SHED_WITHIN: Final = 10.0
"""The last seconds of the overload: clients that are shed then come back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    order: Order
    workers: int
    overload: float
    """Duration of the overload."""
    short: float = 20.0
    """Duration of the phases before and after it."""
    returns: float = 90.0
    """Duration of the phase in which clients come back: `Retry-After` is at most 60 s. 0: none."""
    calm: float = 10.0
    """Once the queue is empty, the time within which first events are as early as before."""
    keeps: float = 0.95
    """Least goodput under the overload, as a share of the capacity."""
    recovers: float = 0.1
    """By which share first events may come later afterwards than before."""
    waits: float = Queue.max_wait_seconds
    """Longest wait in the gateway."""


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed."""

    capacity: float = 0.0
    """Tokens per second."""
    overload: float = 0.0
    """Goodput under the overload."""
    saw: Counter[str] = field(default_factory=Counter)
    returned: Counter[str] = field(default_factory=Counter)
    """Attempts of clients that came back, at exactly the capacity."""
    first_events: list[float] = field(default_factory=list)
    """Median times to the first event at half of the capacity, before and after, in seconds."""
    wrong: list[str] = field(default_factory=list)
    """Answers that are neither whole nor a refusal with `Retry-After`."""

    def line(self) -> dict[str, Any]:
        """For the results."""
        return {
            "order": self.plan.order,
            "workers": self.plan.workers,
            "seconds": self.plan.overload,
            "capacity": self.capacity,
            "goodput": self.overload,
            "saw": self.saw,
            "returned": self.returned,
            "firstEvents": self.first_events,
            "ejections": self.ejections,
            "decodeLost": self.state["settlements"]["decode_lost"],
        }


async def run(plan: Plan, log: Path) -> Report:
    """Run all phases."""
    report = Report(plan)
    engines = Engines(plan.order)
    settings = Settings(workers=plan.workers, limits=Limits(max_wait_seconds=plan.waits))
    async with setup(engines, each_role(_SIM, _ENGINES), settings, log) as [gateway]:
        await _run_phases(report, gateway, engines)
        await conclude(report, [gateway])
    report.expect(not engines.violations, f"violations: {dict(engines.violations)}")
    _check(report)
    return report


async def _run_phases(report: Report, gateway: GatewayProcess, engines: Engines) -> None:
    plan = report.plan
    decodes = [spec.address for spec in engines.specs.values() if spec.role is Role.DECODE]
    rate = await _measure_capacity(report, Traffic(decodes, _TOKENS))
    calm, flood, even, after = phases = [Traffic([gateway.listen], _TOKENS) for _ in range(4)]
    await calm.open_loop(rate / 2, within(plan.short))
    await calm.finish()
    began = time.monotonic()
    await flood.open_loop(TIMES * rate, within(plan.overload))
    report.overload = goodput(flood.attempts, began + _RAMP, time.monotonic())
    await even.open_loop(rate, within(plan.returns), _back_at(flood.attempts))
    counts_from = await _load_until_calm(after, rate / 2, gateway, plan)
    for phase in phases:
        await phase.finish()
    report.saw = Counter(each.saw for each in flood.attempts)
    report.returned = Counter(each.saw for each in even.attempts if each.returned)
    report.first_events = [
        first_event(calm.attempts),
        first_event(each for each in after.attempts if each.began >= counts_from),
    ]
    report.wrong = [each.detail for phase in phases for each in phase.attempts if each.detail]


async def _measure_capacity(report: Report, direct: Traffic) -> float:
    """Requests per second that the decode engines answer without a gateway."""
    began, short = time.monotonic(), report.plan.short
    await direct.closed_loop(2 * _ENGINES * _RUNNING, short, least=2)
    report.expect({each.saw for each in direct.attempts} == {Saw.TEXT}, "decode engines do not answer all")
    report.capacity = goodput(direct.attempts, began + short / 3, max(began + short, last_begin(direct.attempts)))
    return report.capacity / _TOKENS


async def _load_until_calm(after: Traffic, rate: float, gateway: GatewayProcess, plan: Plan) -> float:
    """Load the gateway until its queue has been empty for a while, and longer; return when that longer time begins."""
    load = asyncio.create_task(after.open_loop(rate, lambda: False))
    try:
        if not await eventually(lambda: _queue_is_empty(gateway), within=_EMPTY_WITHIN):
            raise TimeoutError("the queue does not become empty at half of the capacity")
        await asyncio.sleep(plan.calm)
        counts_from = time.monotonic()
        await asyncio.sleep(plan.short)
    finally:
        load.cancel()
    return counts_from


async def _queue_is_empty(gateway: GatewayProcess) -> bool:
    return not (await gateway.state())["inFlight"]["queued"]


def _back_at(attempts: Iterable[Attempt]) -> "asyncio.PriorityQueue[float]":
    """When the clients come back that were shed in the last seconds of the overload."""
    found: asyncio.PriorityQueue[float] = asyncio.PriorityQueue()
    since = time.monotonic() - _SHED_WITHIN
    for each in attempts:
        if each.saw is Saw.SHED and each.ended >= since:
            found.put_nowait(each.ended + each.retry_after)
    return found


def _check(report: Report) -> None:
    report.expect(not report.wrong, f"neither answered nor shed: {report.wrong[:5]}")
    share = report.overload / report.capacity
    report.expect(
        share >= report.plan.keeps, f"goodput {report.overload:.0f} of {report.capacity:.0f} tokens per second"
    )
    report.expect(not report.ejections, f"healthy engines ejected: {report.state['ejections']}")
    report.expect(not report.state["settlements"]["decode_lost"], f"KV lost: {report.state['settlements']}")
    returned, served = report.returned.total(), report.returned[Saw.TEXT]
    came_back = returned > 0 or not report.plan.returns
    report.expect(came_back and served >= _SERVED * returned, f"{served} of {returned} that came back were served")
    before, after = report.first_events
    report.expect(
        after <= before * (1 + report.plan.recovers),
        f"first events after {before:.3f} s before, {after:.3f} s afterwards",
    )
