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
from benchmarks.soak.program import GatewayProcess
from benchmarks.soak.traffic import Traffic, goodput, within
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Settings
from pdx_sim import SimSettings

_ENGINES: Final = 2
_SLOTS: Final = 4
_RUNNING: Final = 64
_TOKENS: Final = 5
_WATCH_SECONDS: Final = 0.02
_LEGS: Final = {Role.PREFILL: 3 * _SLOTS, Role.DECODE: _RUNNING + max(4, _RUNNING // 10)}
"""Most open legs of an engine. A P gets twice what it runs, and the gateway tries a few more while none waits."""


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

    def line(self) -> dict[str, Any]:
        """For the results."""
        return {
            "order": self.plan.order,
            "seconds": self.plan.phase,
            "capacity": self.capacity,
            "answers": self.answers,
            "patient": [len(self.patient), max(self.patient, default=0.0)],
            "legs": self.legs,
        }


async def run(plan: Plan, log: Path) -> Report:
    """Run every load."""
    report = Report(plan, capacity=_ENGINES * _SLOTS / plan.prefill)
    engines = Engines(plan.order)
    async with setup(engines, each_role(_sim(plan), _ENGINES), Settings(), log) as [gateway]:
        watch = asyncio.create_task(_watch_legs(report, engines))
        for load in plan.loads:
            await _phase(report, gateway, load)
        watch.cancel()
        await conclude(report, [gateway])
    _check(report)
    return report


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


async def _phase(report: Report, gateway: GatewayProcess, load: float) -> None:
    """Offer one load, with the patient client beside it, and wait until the gateway is idle again."""
    plan = report.plan
    impatient = Traffic([gateway.listen], _TOKENS, patience=plan.patience)
    patient = Traffic([gateway.listen], _TOKENS)
    began = time.monotonic()
    patience = asyncio.create_task(patient.closed_loop(1, plan.phase))
    await impatient.open_loop(load * report.capacity, within(plan.phase), asyncio.PriorityQueue())
    report.answers[load] = goodput(impatient.attempts, began + plan.patience, time.monotonic()) / _TOKENS
    await asyncio.gather(patience, impatient.finish())
    report.patient += [each.ended - each.began for each in patient.attempts if each.saw is Saw.TEXT]
    report.refused += [each.detail or each.saw for each in patient.attempts if each.saw is not Saw.TEXT]
    strange = {each.saw for each in impatient.attempts} - {Saw.TEXT, Saw.SHED, Saw.STUCK}
    report.expect(not strange, f"at load {load}: {strange}")
    await come_to_idle(report, gateway)


async def _watch_legs(report: Report, engines: Engines) -> None:
    while True:
        for engine in engines.all:
            role, counts = engine.settings.role, engine.counts
            report.legs[role] = max(report.legs[role], counts.running_now + counts.waiting_now)
        await asyncio.sleep(_WATCH_SECONDS)


def _check(report: Report) -> None:
    at_capacity, most = report.answers[1.0], report.answers[max(report.plan.loads)]
    report.expect(most >= report.plan.keeps * at_capacity, f"answers per second by load: {report.answers}")
    report.expect(not report.refused, f"the patient client was not served: {report.refused[:5]}")
    report.expect(bool(report.patient), "the patient client got no answer")
    report.expect(all(report.legs[role] <= _LEGS[role] for role in _LEGS), f"open legs of an engine: {report.legs}")
    report.expect(not report.ejections, f"healthy engines ejected: {report.state['ejections']}")
