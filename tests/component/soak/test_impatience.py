"""Clients that give up and try again at once: half a minute always, ten minutes in `make soak`."""

from pathlib import Path

import pytest

from benchmarks.soak.impatience import Plan, run
from benchmarks.soak.results import print_line, record
from pdx_api.names import Order

ALWAYS = Plan(Order.PREFILL_FIRST, phase=8.0, prefill=0.4, patience=2.0, loads=(1.0, 5.0), keeps=0.6)
"""Shorter phases vary more, and other tests run beside it. Served in order of arrival, five times the load has a tenth
of the answers."""
SOAK = [Plan(order) for order in Order]


@pytest.mark.alone
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(ALWAYS, marks=pytest.mark.timeout(180), id="short"),
        *(pytest.param(plan, marks=[pytest.mark.soak, pytest.mark.timeout(1800)], id=str(plan.order)) for plan in SOAK),
    ],
)
async def test_answers_come_at_five_times_the_load(plan: Plan, tmp_path: Path) -> None:
    report = await run(plan, tmp_path / "gateway.log")
    print_line("impatience", report.line())
    assert not report.failures, "\n".join(report.failures)
    if plan is not ALWAYS:
        record("impatience", report.line())
