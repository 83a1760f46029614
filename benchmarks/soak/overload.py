"""Ten times as many requests as the engines can serve, and the goodput under that load."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import conclude, each_role, setup
from benchmarks.soak.program import GatewayProcess
from benchmarks.soak.traffic import Attempt, Traffic, goodput, last_begin, within
from pdx_api.names import Order
from pdx_proxy.config.settings import Limits, Settings

TIMES: Final = 10
_SIM: Final = replace(
    BASE,
    jitter=0.0,
    prefill_base_seconds=0.08,
    prefill_token_seconds=0.0,
    prefill_slots=1,
    decode_token_seconds=5e-3,
    lease_seconds=30.0,
)
"""Two P of these serve 25 requests a second."""
_ENGINES: Final = 2
_TOKENS: Final = 10
_PROMPT: Final = "x" * 8000
LIMITS: Final = Limits(max_in_flight_per_decode=12, max_requests=24, max_buffered_bytes=4 << 20, max_wait_seconds=1.0)
_PATIENCE: Final = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    order: Order
    seconds: float
    keeps: float = 0.9
    """Least goodput, as a share of the peak."""


@dataclass
class Report(frame.Report[Plan]):
    """The whole run."""

    peak: float = 0.0
    """Answers per second under the load that the engines can serve."""
    goodput: float = 0.0
    """Answers per second under ten times that."""
    calm: list[Attempt] = field(default_factory=list)
    flood: list[Attempt] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """For the results."""
        late = sorted(each.ended - each.began for each in self.flood if each.saw is Saw.SHED) or [0.0]
        return {
            "order": self.plan.order,
            "seconds": self.plan.seconds,
            "peak": self.peak,
            "offered": len(self.flood) / self.plan.seconds,
            "goodput": self.goodput,
            "shed": _saw(self.flood)[Saw.SHED],
            "shedSeconds": [late[len(late) // 2], late[len(late) * 99 // 100]],
            "memory": self.memory,
        }


async def run(plan: Plan, log: Path) -> Report:
    """First the load that the engines can serve, then ten times that."""
    report = Report(plan)
    async with setup(Engines(plan.order), each_role(_SIM, _ENGINES), Settings(limits=LIMITS), log) as [gateway]:
        await _run_phases(report, gateway)
        await conclude(report, [gateway])
    _check(report)
    return report


async def _run_phases(report: Report, gateway: GatewayProcess) -> None:
    calm, flood = (Traffic([gateway.listen], _TOKENS, _PROMPT, patience=_PATIENCE) for _ in range(2))
    began, seconds = time.monotonic(), max(4.0, report.plan.seconds / 10)
    await calm.closed_loop(8 * _ENGINES, seconds, least=2)  # every engine is busy
    report.peak = goodput(calm.attempts, began, max(began + seconds, last_begin(calm.attempts))) / _TOKENS
    report.memory["before"] = gateway.memory()
    watch = asyncio.create_task(_weigh(report, gateway))
    began = time.monotonic()
    await flood.open_loop(TIMES * report.peak, within(report.plan.seconds))
    await flood.finish()
    watch.cancel()
    report.goodput = goodput(flood.attempts, began, began + report.plan.seconds) / _TOKENS
    report.calm, report.flood = calm.attempts, flood.attempts


async def _weigh(report: Report, gateway: GatewayProcess) -> None:
    report.memory["most"] = 0
    with suppress(FileNotFoundError):
        while True:
            report.memory["most"] = max(report.memory["most"], gateway.memory())
            await asyncio.sleep(0.1)


def _saw(attempts: Iterable[Attempt]) -> Counter[Saw]:
    return Counter(each.saw for each in attempts)


def _wrong(attempts: Iterable[Attempt]) -> list[str]:
    return [each.detail for each in attempts if each.detail][:5]


def _check(report: Report) -> None:
    calm, saw, line = _saw(report.calm), _saw(report.flood), report.line()
    report.expect(calm.keys() == {Saw.TEXT}, f"at its peak not all were answered: {calm} {_wrong(report.calm)}")
    report.expect(not _wrong(report.flood), f"neither answered nor shed: {saw}: {_wrong(report.flood)}")
    report.expect(
        report.goodput >= report.plan.keeps * report.peak,
        f"goodput {report.goodput:.1f}/s, at its peak {report.peak:.1f}/s",
    )
    report.expect(saw[Saw.SHED] > saw[Saw.TEXT], f"too few were shed: {saw}")
    advice = Counter(each.retry_after for each in report.flood if each.saw is Saw.SHED)
    report.expect(min(advice, default=0) > 0, f"Retry-After: {advice}")
    middle, latest = line["shedSeconds"]
    report.expect(
        middle < LIMITS.max_wait_seconds and latest < LIMITS.max_wait_seconds + 2.0, f"sheds: {middle}, {latest}"
    )
    grown = report.memory["most"] - report.memory["before"]
    report.expect(grown < LIMITS.buffered_bytes + (24 << 20), f"memory has grown by {grown >> 20} MiB")
    outcomes, requests = report.state["outcomes"], (calm + saw).total()
    report.expect(outcomes["shed"] == saw[Saw.SHED], f"{saw[Saw.SHED]} saw that they were shed, but {outcomes}")
    report.expect(sum(outcomes.values()) == requests, f"{requests} requests, but {outcomes}")
