"""Three times the capacity at default limits: half a minute always, ten minutes in `make soak`."""

from pathlib import Path

import pytest

from benchmarks.soak.capacity import Plan, run
from benchmarks.soak.results import print_line, record
from pdx_api.names import Order

ALWAYS = Plan(Order.PREFILL_FIRST, 1, overload=8.0, short=4.0, returns=0.0, calm=2.0, keeps=0.85, recovers=0.5)
"""Shorter phases vary more, and other tests run beside it."""
SOAK = [Plan(order, workers, overload=600.0) for order in Order for workers in (1, 2)]


@pytest.mark.alone
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(ALWAYS, marks=pytest.mark.timeout(180), id="short"),
        *(
            pytest.param(plan, marks=[pytest.mark.soak, pytest.mark.timeout(1800)], id=f"{plan.order}-{plan.workers}")
            for plan in SOAK
        ),
    ],
)
async def test_three_times_the_capacity(plan: Plan, tmp_path: Path) -> None:
    report = await run(plan, tmp_path / "gateway.log")
    print_line("capacity", report.line())
    assert not report.failures, "\n".join(report.failures)
    if plan is not ALWAYS:
        record("capacity", report.line())
