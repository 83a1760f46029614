"""The owner of settlements."""

from types import SimpleNamespace
from typing import Any

from pdx_proxy.admission.permit import Permit
from pdx_proxy.admission.usage import Usage
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.telemetry.counters import Counters, Settlement


async def test_a_settlement_counts_from_the_moment_it_is_handed_over() -> None:
    """Its request ends in the same turn of the event loop: between both, nothing would show that work is left."""
    counters = Counters()
    serving: Any = SimpleNamespace(counters=counters, engines=None, tracing=None)
    settlements = Settlements(serving)
    usage, exchange = Usage(), object()
    permit = Permit(usage, exchange, None, None)  # type: ignore[arg-type]
    permit.serve()
    call: Any = SimpleNamespace(permit=permit)

    async def work() -> Settlement:
        return Settlement.RELEASED

    settlements.settle(work(), call)
    permit.release()
    assert (counters.settling, usage.in_flight) == (1, 1)
    await settlements.drain()
    assert (counters.settling, usage.in_flight) == (0, 0)
    assert counters.settlements[Settlement.RELEASED] == 1
