"""Which fault strikes a request."""

import random

import pytest

from pdx_sim import Fault, FaultKind, Faults, Leg
from pdx_sim.faults import fault_of


def test_a_fault_strikes_its_leg_as_often_as_its_count() -> None:
    faults = Faults(random.Random(0))
    faults.add(FaultKind.STATUS, count=2, leg=Leg.DECODE, status=503)
    struck = [faults.take(leg) is not None for leg in (Leg.PREFILL, Leg.DECODE, Leg.PLAIN, Leg.DECODE, Leg.DECODE)]
    assert struck == [False, True, False, True, False]


def test_a_seed_repeats_the_strikes_of_a_probability() -> None:
    def strikes() -> list[bool]:
        faults = Faults(random.Random(7))
        faults.add(FaultKind.ABORT, count=None, probability=0.5)
        return [faults.take(Leg.PLAIN) is not None for _ in range(50)]

    assert strikes() == strikes()
    assert 10 < sum(strikes()) < 40


def test_fault_from_json() -> None:
    fields = {"kind": "die_in_event", "events": 3, "leg": "decode", "count": None}
    assert fault_of(fields) == Fault(FaultKind.DIE_IN_EVENT, count=None, leg=Leg.DECODE, events=3)
    with pytest.raises(ValueError, match="nonsense"):
        fault_of({"kind": "nonsense"})
