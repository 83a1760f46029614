"""The owner of settlements."""

from types import SimpleNamespace
from typing import Any

import pytest

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


class _EndedLegs(_Legs):
    """A P that has failed after D has refused its leg."""

    def situation(self) -> Situation:
        return Situation(Kind.PUSH, False, Prefill.BROKEN, Decode.REFUSED)

    def end(self, result: Settlement | None) -> None:
        assert result is Settlement.LEASE


async def test_a_settlement_that_takes_no_time_is_counted_and_traced() -> None:
    counters, records = Counters(), []
    tracing = SimpleNamespace(settled=lambda path, timeline, record: records.append((path, record.result)))
    serving: Any = SimpleNamespace(counters=counters, engines=SimpleNamespace(clock=lambda: 0.0), tracing=tracing)
    request: Any = SimpleNamespace(path="/v1/completions", timeline=None)
    Settlements(serving).settle(_EndedLegs(request))
    assert counters.settlements[Settlement.LEASE] == 1
    assert records == [("/v1/completions", "lease")]


class _ImpossibleLegs(_Legs):
    """Facts that no row fits."""

    ended: Settlement | None = None

    def situation(self) -> Situation:
        return Situation(Kind.POOL, False, Prefill.DIED, Decode.LATE)

    def end(self, result: Settlement | None) -> None:
        self.ended = result


def test_legs_end_although_no_row_fits() -> None:
    serving: Any = SimpleNamespace(counters=Counters(), engines=None, tracing=None)
    request: Any = None
    legs = _ImpossibleLegs(request)
    with pytest.raises(LookupError):
        Settlements(serving).settle(legs)
    assert legs.ended is Settlement.LEASE
