"""KV that is blocked for a while, and then moves again: what requests notice of it.

Two prefill and two decode engines serve a steady load. The block strikes a pair, an engine, all engines, or the store
of a pool, before the gateway starts or under load.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import conclude, each_role, setup
from benchmarks.soak.program import GatewayProcess
from benchmarks.soak.traffic import Attempt, Traffic
from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Verification
from pdx_proxy.config.settings import Deadlines, Settings
from pdx_sim import SimEngine, SimSettings

POOL: Final = "LMCache"
_ENGINES: Final = 2
_FOREVER: Final = 3600.0
_PROOF: Final = 10.0
"""Seconds after the first proof from which no request waits for the blocked transfer."""
_RETURNS: Final = 90.0
"""Seconds after the repair within which requests are split again."""
_SERVED: Final = 2.0
"""Seconds that the whole service of a request takes at most, on a busy machine."""
_POLL: Final = 0.25
_LONG_SECONDS: Final = 360.0


class Where(StrEnum):
    """Where KV is blocked."""

    PAIR = "one pair"
    DECODE = "one D"
    PREFILL = "one P"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    order: Order
    where: Where
    before: bool
    """Whether KV is blocked when the gateway starts, or later, under load."""
    rate: float
    """Requests per second."""
    seconds: float = 240.0
    """The longest time until the first proof. Afterwards, KV stays blocked for 10 s and half of this time."""
    handoff: float = Deadlines().handoff_seconds
    connector: str = "NIXL"
    period: float = 60.0
    """Of the transfer probes."""
    length: float = 0.0
    """How long the load lasts at least."""


def cells(rate: float, **fields: Any) -> list[Plan]:
    """Every order, place and time."""
    nixl = [Plan(*cell, rate, **fields) for cell in itertools.product(Order, Where, (True, False))]
    pool = [
        Plan(Order.PREFILL_FIRST, where, before, rate, connector=POOL, **fields)
        for where in (Where.ALL, Where.DECODE)
        for before in (True, False)
    ]
    return nixl + pool


def pairs() -> list[Plan]:
    """Few long runs that contain each pair of order, place, time and rate. A pool is blocked at the store or at a D."""
    rates = (2.0, 10.0, 50.0)
    places = [(order, where, "NIXL") for order in Order for where in Where]
    places += [(Order.PREFILL_FIRST, where, POOL) for where in (Where.ALL, Where.DECODE)]
    return [
        Plan(
            *(order, where, (number + number // 4) % 2 == 0, rates[(number + number // 4) % 3]),
            connector=connector,
            length=_LONG_SECONDS,
        )
        for number, (order, where, connector) in enumerate(places)
    ]


SHORT: Final = [
    Plan(order, where, before=False, rate=10.0, seconds=10.0, handoff=5.0, connector=connector, period=5.0)
    for order, where, connector in (
        (Order.PREFILL_FIRST, Where.ALL, "NIXL"),
        (Order.DECODE_FIRST, Where.ALL, "NIXL"),
        (Order.CONCURRENT, Where.ALL, "NIXL"),
        (Order.PREFILL_FIRST, Where.ALL, POOL),
    )
]


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed. All times are in seconds."""

    saw: Counter[Saw] = field(default_factory=Counter)
    proved: float = 0.0
    """From the block, or the first request, to the first proof: a suspended pair, or a hand-off that failed."""
    early: float = 0.0
    """The longest request that began before the proof or soon after it."""
    late: float = 0.0
    """The longest request that began later, while KV was blocked."""
    length: float = 0.0
    """Of the load."""
    returned: float = 0.0
    """From the repair to the first request that is split while no pair is suspended."""

    def line(self) -> dict[str, Any]:
        """For the results."""
        plan = self.plan
        return {
            "order": plan.order if plan.connector == "NIXL" else "pool",
            "where": plan.where,
            "when": "before start" if plan.before else "under load",
            "rate": plan.rate,
            "seconds": plan.seconds,
            "length": self.length,
            "handoffSeconds": plan.handoff,
            "saw": dict(self.saw),
            "proved": self.proved,
            "early": self.early,
            "late": self.late,
            "returned": self.returned,
        }


async def run(plan: Plan, log: Path) -> Report:
    """Block KV, and repair it under load."""
    report, engines = Report(plan), Engines(plan.order, known=True)
    settings = Settings(deadlines=replace(Settings().deadlines, handoff_seconds=plan.handoff))
    with TemporaryDirectory(prefix="pdx-store-") as store:
        for role, sim in each_role(_sim(plan, store), _ENGINES):
            await engines.add(role, sim)
        if plan.before:
            _block(plan, engines)
        probes = Verification(period_seconds=plan.period)
        roles = (Role.DECODE,) if plan.before else tuple(Role)  # no P becomes warm while its KV is blocked
        async with setup(engines, [], settings, log, verification=probes, roles=roles) as [gateway]:
            await _measure(report, gateway, engines)
            report.expect(not sum(engines.violations.values()), f"violations: {engines.violations}")
            await conclude(report, [gateway])
    _check(report)
    return report


def _sim(plan: Plan, store: str) -> SimSettings:
    pool = plan.connector == POOL
    return replace(BASE, connector=plan.connector, storage=store if pool else "", jitter=0.0, side_channel_timeout=5.0)


def _block(plan: Plan, engines: Engines) -> None:
    """Block KV where the plan says."""
    everyone = list(engines.live.values())
    prefill, decode = ([e for e in everyone if e.settings.role is role] for role in (Role.PREFILL, Role.DECODE))
    match plan.where:
        case Where.PAIR:
            _separate(prefill[:1], decode[:1])
        case Where.DECODE:
            _separate(decode[:1], prefill)
        case Where.PREFILL:
            _separate(prefill[:1], decode)
        case Where.ALL:
            _separate(prefill, decode)
    for engine in decode[:1] if plan.where is Where.DECODE else everyone:
        if engine.storage is not None:
            engine.storage.block(_FOREVER)


def _separate(prefill: Iterable[SimEngine], decode: Iterable[SimEngine]) -> None:
    """Let none of these P's and D's reach each other."""
    both = list(prefill), list(decode)
    for near, far in (both, both[::-1]):
        for engine in near:
            engine.station.channel.block(_FOREVER, frozenset(other.side_channel_port for other in far))
            engine.station.handshaken.clear()


def _repair(engines: Engines) -> None:
    for engine in engines.live.values():
        engine.station.channel.block(0.0)
        if engine.storage is not None:
            engine.storage.block(0.0)


async def _measure(report: Report, gateway: GatewayProcess, engines: Engines) -> None:
    plan = report.plan
    traffic = Traffic([gateway.listen], tokens=20, prompt="x " * 200)
    load, started = asyncio.create_task(traffic.open_loop(plan.rate, lambda: False)), time.monotonic()
    try:
        if not plan.before:
            await asyncio.sleep(min(plan.seconds / 2, 60.0))
            _block(plan, engines)
        began = time.monotonic()
        report.proved = await _first_proof(gateway, traffic, began, plan)
        await asyncio.sleep(max(_PROOF + began + report.proved - time.monotonic(), 0.0) + plan.seconds / 2)
        repaired = time.monotonic()
        _repair(engines)
        report.returned = await _until_split(gateway) - repaired
        await asyncio.sleep(max(min(plan.seconds / 4, 60.0), started + plan.length - time.monotonic()))
        report.length = time.monotonic() - started
    finally:
        load.cancel()
    await traffic.finish()
    _judge(report, traffic.attempts, began, repaired)


async def _first_proof(gateway: GatewayProcess, traffic: Traffic, began: float, plan: Plan) -> float:
    """Wait until the gateway suspends a pair, or a request has waited for KV in vain; return when that was."""
    while time.monotonic() < began + plan.seconds:
        if (await gateway.state())["suspendedPairs"]:
            return time.monotonic() - began
        waited = [each.ended for each in traffic.attempts if each.ended - each.began > plan.handoff / 2]
        if waited:
            return min(waited) - began
        await asyncio.sleep(_POLL)
    return plan.seconds


async def _until_split(gateway: GatewayProcess) -> float:
    """Wait until no pair is suspended and requests are split; return when that was."""
    end, split = time.monotonic() + 2 * _RETURNS, None
    while time.monotonic() < end:
        state = await gateway.state()
        now = state["outcomes"].get("split", 0)
        if not state["suspendedPairs"]:
            if split is not None and now > split:
                return time.monotonic()
            split = now if split is None else split
        await asyncio.sleep(_POLL)
    return end


def _judge(report: Report, attempts: Iterable[Attempt], began: float, repaired: float) -> None:
    proof = began + report.proved
    for each in attempts:
        report.saw[each.saw] += 1
        report.expect(each.saw in (Saw.TEXT, Saw.SHED), f"not served: {each.detail}")
        took = each.ended - each.began
        if each.ended >= began and each.began < proof + _PROOF:
            report.early = max(report.early, took)
        elif proof + _PROOF <= each.began < repaired:
            report.late = max(report.late, took)


def _check(report: Report) -> None:
    plan = report.plan
    report.expect(not report.saw[Saw.SHED], f"{report.saw[Saw.SHED]} requests were shed, although there was room")
    longest = plan.handoff + _SERVED
    report.expect(report.early <= longest, f"a request took {report.early:.1f} s before the proof, over {longest:g} s")
    report.expect(report.late <= _SERVED, f"a request took {report.late:.1f} s although KV was known to be blocked")
    report.expect(report.returned <= _RETURNS, f"splitting returned {report.returned:.0f} s after the repair")
