"""Ten times as many requests as the engines can serve, and what becomes of those they can."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.soak.campaign import check_log, come_to_idle, warm
from benchmarks.soak.clients import Answer, Ask, Saw, connect, drop, judge, read_answer
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.program import GatewayProcess
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Limits, Settings, Verification

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
LIMITS: Final = Limits(in_flight_per_decode=12, queued_requests=24, buffered_bytes=4 << 20, queue_seconds=1.0)
_PATIENCE: Final = 30.0


@dataclass(frozen=True, slots=True)
class Overload:
    """One run."""

    order: Order
    seconds: float
    seed: int
    keeps: float = 0.9
    """Least goodput, as a share of the peak."""


@dataclass
class Tide:
    """What one phase of the load saw."""

    seconds: float = 0.0
    saw: Counter[str] = field(default_factory=Counter)
    shed_seconds: list[float] = field(default_factory=list)
    advice: Counter[str] = field(default_factory=Counter)
    """Retry-After of the sheds."""
    wrong: list[str] = field(default_factory=list)
    good_in_time: int = 0
    """Right answers that came while the load lasted."""

    @property
    def rate(self) -> float:
        """Right answers in a second."""
        return self.good_in_time / self.seconds


@dataclass
class Report:
    """The whole run."""

    plan: Overload
    peak: float = 0.0
    flood: Tide = field(default_factory=Tide)
    state: dict[str, Any] = field(default_factory=dict)
    requests: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, text: str) -> None:
        """Keep a failure."""
        if not holds:
            self.failures.append(text)

    def line(self) -> dict[str, Any]:
        """For the results."""
        late = sorted(self.flood.shed_seconds) or [0.0]
        return {
            "order": self.plan.order,
            "seconds": self.plan.seconds,
            "peak": self.peak,
            "offered": sum(self.flood.saw.values()) / self.flood.seconds,
            "goodput": self.flood.rate,
            "shed": self.flood.saw[Saw.SHED],
            "shedSeconds": [late[len(late) // 2], late[len(late) * 99 // 100]],
            "memory": self.memory,
        }


async def run(plan: Overload, log: Path) -> Report:
    """First what the engines can do, then ten times that; the report's `failures` say what did not hold."""
    report = Report(plan)
    engines = Engines(plan.order, random.Random(plan.seed), sim=_SIM)
    try:
        async with GatewayProcess(Settings(limits=LIMITS, verification=Verification(period_seconds=0)), log) as gateway:
            engines.tell = gateway.tell
            for role in (Role.PREFILL, Role.DECODE):
                for _ in range(_ENGINES):
                    await engines.add(role)
            await warm(gateway, engines)
            calm = await _tide(gateway, max(4.0, plan.seconds / 10), _steady)
            report.peak = calm.rate
            report.memory["before"] = gateway.memory()
            watch = asyncio.create_task(_weigh(report, gateway))
            report.flood = await _tide(gateway, plan.seconds, lambda end, ask: _flood(end, ask, TIMES * report.peak))
            watch.cancel()
            report.requests = sum((calm.saw + report.flood.saw).values())
            await come_to_idle(report, gateway)
            report.state = await gateway.state()
            check_log(report, gateway.log)
            report.expect(calm.saw.keys() == {Saw.TEXT}, f"at its peak not all were answered: {calm.saw} {calm.wrong}")
    finally:
        await engines.close()
    _check(report)
    return report


Once = Callable[[], Awaitable[None]]


async def _tide(gateway: GatewayProcess, seconds: float, load: Callable[[float, Once], Awaitable[None]]) -> Tide:
    tide = Tide()
    began = time.monotonic()
    numbers = iter(range(1 << 62))

    async def once() -> None:
        ask = Ask(next(numbers), chat=False, stream=True, prompt=f"{next(numbers)} {_PROMPT}", tokens=_TOKENS)
        at = time.monotonic()
        answer = await _exchange(gateway, ask)
        took = time.monotonic() - at
        saw = judge(ask, answer) if answer is not None else Saw.STUCK
        tide.saw[saw] += 1
        if saw is Saw.TEXT:
            tide.good_in_time += time.monotonic() - began <= seconds
        elif saw is Saw.SHED and answer is not None:
            tide.shed_seconds.append(took)
            tide.advice[answer.head.get("retry-after", "")] += 1
        else:
            tide.wrong.append(f"{saw}: {answer}"[:500])

    await load(began + seconds, once)
    tide.seconds = seconds
    return tide


async def _exchange(gateway: GatewayProcess, ask: Ask) -> Answer | None:
    reader, writer = await connect(gateway.listen)
    answer = Answer()
    try:
        writer.write(ask.wire("Connection: close\r\n"))
        async with asyncio.timeout(_PATIENCE):
            answer = await read_answer(reader)
    except TimeoutError:
        return None
    except ConnectionError:
        pass
    finally:
        drop(writer)
    return answer


async def _steady(end: float, once: Once) -> None:
    """As many clients as keep every engine busy, one request after the other."""

    async def client() -> None:
        while time.monotonic() < end:
            await once()

    await asyncio.gather(*(client() for _ in range(8 * _ENGINES)))


async def _flood(end: float, once: Once, rate: float) -> None:
    """Requests at a rate, whatever becomes of them."""
    began, sent = time.monotonic(), 0
    async with asyncio.TaskGroup() as group:
        while (now := time.monotonic()) < end:
            due = int((now - began) * rate)
            for _ in range(due - sent):
                group.create_task(_tell(once))
            sent = due
            await asyncio.sleep(0.005)


async def _tell(once: Once) -> None:
    await once()


async def _weigh(report: Report, gateway: GatewayProcess) -> None:
    report.memory["most"] = 0
    with suppress(FileNotFoundError):
        while True:
            report.memory["most"] = max(report.memory["most"], gateway.memory())
            await asyncio.sleep(0.1)


def _check(report: Report) -> None:
    flood, line = report.flood, report.line()
    report.expect(not flood.wrong, f"neither answered nor shed: {flood.saw}: {flood.wrong[:5]}")
    report.expect(
        flood.rate >= report.plan.keeps * report.peak, f"goodput {flood.rate:.1f}/s, at its peak {report.peak:.1f}/s"
    )
    report.expect(flood.saw[Saw.SHED] > flood.saw[Saw.TEXT], f"too few were shed: {flood.saw}")
    report.expect(all(each.isdigit() and int(each) for each in flood.advice), f"Retry-After: {flood.advice}")
    middle, latest = line["shedSeconds"]
    report.expect(middle < LIMITS.queue_seconds and latest < LIMITS.queue_seconds + 2.0, f"sheds: {middle}, {latest}")
    grown = report.memory["most"] - report.memory["before"]
    report.expect(grown < LIMITS.buffered_bytes + (24 << 20), f"memory has grown by {grown >> 20} MiB")
    outcomes = report.state["outcomes"]
    report.expect(
        outcomes["shed"] == flood.saw[Saw.SHED], f"{flood.saw[Saw.SHED]} saw that they were shed, but {outcomes}"
    )
    report.expect(sum(outcomes.values()) == report.requests, f"{report.requests} requests, but {outcomes}")
