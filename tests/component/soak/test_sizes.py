"""Decode engines of different sizes side by side: seconds always, minutes in `make soak`."""

from pathlib import Path

import pytest

from benchmarks.soak.results import print_line, record
from benchmarks.soak.sizes import Plan, run
from pdx_api.names import Order

ALWAYS = Plan(Order.PREFILL_FIRST, overload=9.0, fills=5.0, tokens=10, token=0.1, sequences=(4, 32), runs=0.85)
"""Shorter, so it varies more, and other tests run beside it."""
SOAK = [Plan(order, gateways) for order in Order for gateways in (1, 2)]


@pytest.mark.alone
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(ALWAYS, marks=pytest.mark.timeout(180), id="short"),
        *(
            pytest.param(plan, marks=[pytest.mark.soak, pytest.mark.timeout(1800)], id=f"{plan.order}-{plan.gateways}")
            for plan in SOAK
        ),
    ],
)
async def test_each_runs_what_it_can_and_queues_little(plan: Plan, tmp_path: Path) -> None:
    report = await run(plan, tmp_path / "gateway.log")
    print_line("sizes", report.line())
    assert not report.failures, "\n".join(report.failures)
    if plan is not ALWAYS:
        record("sizes", report.line())
