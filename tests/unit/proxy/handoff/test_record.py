"""Hand-offs with scripted engines do what is on record, and release everything exactly once."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdx_proxy.handoff import settlements
from pdx_proxy.handoff.settle import ROWS, Row, Step
from pdx_proxy.handoff.situation import Situation
from tests.unit.proxy.handoff.record import NUMBER, PATH, digest
from tests.unit.proxy.handoff.situations import draw, scripts
from tests.unit.proxy.handoff.virtual_time import run_virtually
from tests.unit.proxy.handoff.world import run


def test_the_recorded_scripts_do_the_same_and_reach_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[Row] = set()

    def settle(situation: Situation) -> Step:
        (row,) = (row for row in ROWS if row.fits(situation))
        reached.add(row)
        return row.step

    monkeypatch.setattr(settlements, "settle", settle)
    recorded = PATH.read_text(encoding="utf-8").split()
    changed = []
    for number, (script, before) in enumerate(zip(scripts(NUMBER), recorded, strict=True), 1):
        notes = run_virtually(run(script))
        if digest(notes) != before:
            changed.append("\n  ".join((f"line {number}: {script}", *notes)))
    assert not changed, f"{len(changed)} scripts, the first: {changed[0]}"
    assert reached == set(ROWS)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_hand_off_ends_and_stops_no_prefill_that_a_decode_waits_for(random: Random) -> None:
    """`run` fails unless the loop ends, everything is released once, and no P is stopped while a D waits for it."""
    run_virtually(run(draw(random.choice)))
