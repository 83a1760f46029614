"""The owner of settlements."""

from types import SimpleNamespace
from typing import Any

from pdx_proxy.admission.permit import Permit
from pdx_proxy.admission.usage import Usage
from pdx_proxy.handoff.request import Request
from pdx_proxy.handoff.settle import Ask
from pdx_proxy.handoff.settlements import LastStep, Legs, Settlements
from pdx_proxy.handoff.situation import Decode, Kind, Prefill, Situation
from pdx_proxy.telemetry.counters import Counters, Settlement


class _Legs(Legs):
    """A P that runs while D waits."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def situation(self) -> Situation:
        return Situation(Kind.PUSH, False, Prefill.RUNNING, Decode.OPEN)

    async def perform(self, step: Ask) -> None:
        self.situation = lambda: Situation(Kind.PUSH, False, Prefill.FINISHED, Decode.HAS_KV)  # type: ignore[method-assign]

    async def conclude(self, step: LastStep) -> Settlement:
        raise AssertionError

    def end(self, result: Settlement | None) -> None:
        assert result is Settlement.FINISHED


async def test_a_settlement_counts_from_the_moment_it_is_handed_over() -> None:
    """Its request ends in the same turn of the event loop: between both, nothing would show that work is left."""
    counters = Counters()
    serving: Any = SimpleNamespace(counters=counters, engines=SimpleNamespace(clock=lambda: 0.0), tracing=None)
    settlements = Settlements(serving)
    usage, exchange = Usage(), object()
    permit = Permit(usage, exchange, None, None)  # type: ignore[arg-type]
    permit.serve()
    request: Any = SimpleNamespace(permit=permit)
    settlements.settle(_Legs(request))
    permit.release()
    assert (counters.settling, usage.in_flight) == (1, 1)
    await settlements.drain()
    assert (counters.settling, usage.in_flight) == (0, 0)
    assert counters.settlements[Settlement.FINISHED] == 1
