"""The bursts of `bursts` without a gateway, and in front of vllm-router, with the same engines.

`python -m benchmarks.soak.bursts_peer` takes about ten minutes. Nothing is checked: its lines of results show the
others' times beside PDX's. Without a gateway, decode engines serve the streams alone.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.soak import peer
from benchmarks.soak.bursts import BURSTS, ENGINES, IDLE_SECONDS, SIM, TOKENS, Plan, Report, burst
from benchmarks.soak.engines import Engines
from benchmarks.soak.frame import each_role
from benchmarks.soak.results import print_line, record
from benchmarks.soak.traffic import Traffic
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address

_NONE: Final = "none"


@asynccontextmanager
async def _addresses(gateway: str, engines: Engines) -> AsyncIterator[Sequence[Address]]:
    if gateway == _NONE:
        yield [Address("127.0.0.1", peer.port_of(each.url)) for each in engines.of(Role.DECODE)]
    else:
        async with peer.started(engines) as listen:
            yield [listen]


async def run(plan: Plan, gateway: str) -> Report:
    """Run all starts."""
    report = Report(plan, gateway=gateway)
    for _ in range(plan.starts):
        engines = Engines(plan.order, known=plan.known)
        try:
            for role, sim in each_role(SIM, ENGINES):
                await engines.add(role, sim)
            async with _addresses(gateway, engines) as where:
                await asyncio.sleep(IDLE_SECONDS)
                waits = [await burst(report, Traffic(where, TOKENS, streams=1)) for _ in range(BURSTS)]
            report.first.append(waits[0])
            report.third.append(waits[-1])
        finally:
            await engines.close()
    return report


def main() -> None:
    """Measure and record each size with each gateway."""
    for streams in (64, 256, 512):
        for gateway in (_NONE, peer.NAME):
            report = asyncio.run(run(Plan(Order.PREFILL_FIRST, streams, known=True), gateway))
            print_line("bursts", report.line())
            if report.failures:
                print_line("bursts", {"failed": report.failures[:3]})
            else:
                record("bursts", report.line())


if __name__ == "__main__":
    main()
