"""The frame of every campaign: engines and gateways that are warm, how they must end, and the report."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from benchmarks.soak.engines import Engines
from benchmarks.soak.program import GatewayProcess
from pdx_api.names import Role
from pdx_api.settings.gateway import Verification
from pdx_proxy.config.settings import EndpointSpec, Settings
from pdx_sim import SimSettings

Plan = TypeVar("Plan")
NO_PROBES: Final = Verification(period_seconds=0)


@dataclass
class Report(ABC, Generic[Plan]):
    """What a campaign showed. `failures` lists what did not hold."""

    plan: Plan
    states: list[dict[str, Any]] = field(default_factory=list)
    """What each gateway reported at the end."""
    failures: list[str] = field(default_factory=list)

    @property
    def state(self) -> dict[str, Any]:
        """Of the first gateway."""
        return self.states[0]

    @property
    def ejections(self) -> int:
        """Of all engines, by all gateways."""
        return sum(sum(state["ejections"].values()) for state in self.states)

    @abstractmethod
    def line(self) -> dict[str, Any]:
        """For the results."""

    def expect(self, holds: bool, text: str) -> None:
        """Keep a failure."""
        if not holds:
            self.failures.append(text)


def each_role(sim: SimSettings, number: int) -> list[tuple[Role, SimSettings]]:
    """So many equal engines of each role."""
    return [(role, sim) for role in (Role.PREFILL, Role.DECODE) for _ in range(number)]


@asynccontextmanager
async def setup(
    engines: Engines,
    sims: Iterable[tuple[Role, SimSettings]],
    settings: Settings,
    log: Path,
    gateways: int = 1,
    verification: Verification = NO_PROBES,
    roles: Collection[Role] = tuple(Role),
) -> AsyncIterator[list[GatewayProcess]]:
    """Gateways and their engines, those of `roles` warm; they end with the context.

    Without `verification`, every leg at an engine is a client's.
    """
    settings = replace(settings, verification=verification)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engines.close)
        logs = [log.with_suffix(f".{number}.log") for number in range(gateways)]
        started = [await stack.enter_async_context(GatewayProcess(settings, each)) for each in logs]

        def set_engines(specs: Iterable[EndpointSpec]) -> None:
            for gateway in started:
                gateway.set_engines(specs)

        engines.on_change = set_engines
        if engines.specs:
            set_engines(engines.specs.values())
        for role, sim in sims:
            await engines.add(role, sim)
        for gateway in started:
            await warm(gateway, engines, roles)
        yield started


async def conclude(report: Report[Any], gateways: Iterable[GatewayProcess]) -> None:
    """Wait until nothing is in flight, keep what each gateway reports, and end it."""
    for gateway in gateways:
        await come_to_idle(report, gateway)
        report.states.append(await gateway.state())
        report.expect(await gateway.end() == 0, "the gateway ends with another code than 0")
        strange = [line for line in gateway.log.splitlines() if not line.startswith("pdx gateway: ")]
        report.expect(not strange, "the gateway's log: " + "\n".join(strange[:40]))


async def warm(gateway: GatewayProcess, engines: Engines, roles: Collection[Role] = tuple(Role)) -> None:
    """Wait until every worker serves and every engine of these roles may be picked."""

    async def all_warm() -> bool:
        state = await gateway.state()
        found = state["endpoints"]
        needed = [each for each in found if each["role"] in roles]
        warm = len(found) == len(engines.specs) and all(each["state"] == "Warm" for each in needed)
        return warm and bool(state["workersServing"] == state["workers"])

    assert await eventually(all_warm, within=30.0), (await gateway.state())["endpoints"]


async def come_to_idle(report: Report[Any], gateway: GatewayProcess) -> None:
    """Wait until nothing is in flight."""

    async def is_idle() -> bool:
        return not any((await gateway.state())["inFlight"].values())

    if not await eventually(is_idle, within=20.0):
        report.expect(False, f"the gateway does not come to rest: {(await gateway.state())['inFlight']}")


async def eventually(condition: Callable[[], Awaitable[bool]], within: float) -> bool:
    """Wait until a condition holds; return whether it did within the seconds."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if await condition():
            return True
        await asyncio.sleep(0.05)
    return False
