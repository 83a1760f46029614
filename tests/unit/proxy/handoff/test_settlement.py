"""The owner of settlements."""

from types import SimpleNamespace
from typing import Any

from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.telemetry.counters import Counters, Settlement


async def test_a_settlement_counts_from_the_moment_it_is_handed_over() -> None:
    """Its request ends in the same turn of the event loop: between both, nothing would show that work is left."""
    counters = Counters()
    serving: Any = SimpleNamespace(counters=counters, engines=None)
    settlements = Settlements(serving)

    async def work() -> Settlement:
        return Settlement.RELEASED

    settlements.settle(work())
    assert counters.settling == 1
    await settlements.drain()
    assert counters.settling == 0
    assert counters.settlements[Settlement.RELEASED] == 1
