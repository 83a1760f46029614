"""Clients that give up and try again at once, with slow prefills: how many answers come at which load.

Each phase offers a multiple of what the prefill engines can serve, retries included. Beside it, a patient client sends
one request at a time from the same address.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import come_to_idle, conclude, each_role, setup
from benchmarks.soak.traffic import Traffic, goodput, within
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, Settings
from pdx_sim import SimSettings

_ENGINES: Final = 2
_SLOTS: Final = 4
_RUNNING: Final = 64
_TOKENS: Final = 5
_WATCH_SECONDS: Final = 0.02
_LEGS: Final = {Role.PREFILL: 3 * _SLOTS, Role.DECODE: _RUNNING + max(4, _RUNNING // 10)}
"""Most open legs per engine of a role. P's get twice what they run, and share that: one may have more than another. The
gateway tries a few more while none waits."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    order: Order
    phase: float = 90.0
    """Duration of each load. The first `patience` does not count."""
    prefill: float = 2.0
    patience: float = 10.0
    loads: Sequence[float] = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
    """Multiples of what the prefill engines can serve."""
    keeps: float = 0.8
    """Least rate of answers at the highest load, as a share of that at load 1."""


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed."""

    capacity: float = 0.0
    """Requests per second."""
    answers: dict[float, float] = field(default_factory=dict)
    """Load -> answers per second."""
    patient: list[float] = field(default_factory=list)
    """Durations of the patient client's requests, in seconds."""
    refused: list[str] = field(default_factory=list)
    """What the patient client got instead of an answer."""
    legs: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(_LEGS, 0))
    """Most open legs of one engine at a time."""
    all_legs: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(_LEGS, 0))
    """Most open legs of all engines of a role at a time."""
    gateway: str = "PDX"

    def line(self) -> dict[str, Any]:
        """For the results."""
        return {
            "gateway": self.gateway,
            "order": self.plan.order,
            "seconds": self.plan.phase,
            "capacity": self.capacity,
            "answers": self.answers,
            "patient": [len(self.patient), max(self.patient, default=0.0)],
            "legs": self.legs,
            "allLegs": self.all_legs,
        }


async def run(plan: Plan, log: Path) -> Report:
    """Run every load."""
    report = begin(plan)
    engines = Engines(plan.order)
    async with setup(engines, engines_of(plan), Settings(), log) as [gateway]:
        watch = asyncio.create_task(watch_legs(report, engines))
        for load in plan.loads:
            strange = await offer(report, gateway.listen, load) - {Saw.TEXT, Saw.SHED, Saw.STUCK}
            report.expect(not strange, f"at load {load}: {strange}")
            await come_to_idle(report, gateway)
        watch.cancel()
        await conclude(report, [gateway])
    _check(report)
    return report


def begin(plan: Plan) -> Report:
    """A report of nothing."""
    return Report(plan, capacity=_ENGINES * _SLOTS / plan.prefill)


def engines_of(plan: Plan) -> list[tuple[Role, SimSettings]]:
    """The engines by role."""
    return each_role(_sim(plan), _ENGINES)


def _sim(plan: Plan) -> SimSettings:
    return replace(
        BASE,
        jitter=0.0,
        prefill_base_seconds=plan.prefill,
        prefill_token_seconds=0.0,
        prefill_slots=_SLOTS,
        max_running=_RUNNING,
        decode_token_seconds=0.01,
        lease_seconds=30.0,
        decoder_ttl_seconds=480.0,
        side_channel_timeout=5.0,
    )


async def offer(report: Report, listen: Address, load: float) -> set[Saw]:
    """Offer one load to a gateway together with the patient client. Return what the impatient ones got."""
    plan = report.plan
    impatient = Traffic([listen], _TOKENS, patience=plan.patience)
    patient = Traffic([listen], _TOKENS)
    began = time.monotonic()
    patience = asyncio.create_task(patient.closed_loop(1, plan.phase))
    await impatient.open_loop(load * report.capacity, within(plan.phase), asyncio.PriorityQueue())
    report.answers[load] = goodput(impatient.attempts, began + plan.patience, time.monotonic()) / _TOKENS
    await asyncio.gather(patience, impatient.finish())
    report.patient += [each.ended - each.began for each in patient.attempts if each.saw is Saw.TEXT]
    report.refused += [each.detail or each.saw for each in patient.attempts if each.saw is not Saw.TEXT]
    return {each.saw for each in impatient.attempts}


async def watch_legs(report: Report, engines: Engines) -> None:
    """Record the most open legs of an engine, for ever."""
    while True:
        for role in _LEGS:
            legs = [each.counts.running_now + each.counts.waiting_now for each in engines.of(role)]
            report.legs[role] = max(report.legs[role], *legs)
            report.all_legs[role] = max(report.all_legs[role], sum(legs))
        await asyncio.sleep(_WATCH_SECONDS)


def _check(report: Report) -> None:
    at_capacity, most = report.answers[1.0], report.answers[max(report.plan.loads)]
    report.expect(most >= report.plan.keeps * at_capacity, f"answers per second by load: {report.answers}")
    report.expect(not report.refused, f"the patient client was not served: {report.refused[:5]}")
    report.expect(bool(report.patient), "the patient client got no answer")
    fits = all(report.all_legs[role] <= most * _ENGINES for role, most in _LEGS.items())
    report.expect(fits, f"open legs of all engines: {report.all_legs}")
    report.expect(not report.ejections, f"healthy engines ejected: {report.state['ejections']}")
