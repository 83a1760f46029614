"""Slow peers beside other clients: a few always, a thousand of each kind in `make soak`."""

from pathlib import Path

import pytest

from benchmarks.soak.crowd import Plan, run
from benchmarks.soak.results import print_line, record

ALWAYS = Plan(peers=60, phase=2.0, may_add=0.1)
"""Shorter, so the p99 is the slowest request, and other tests run beside it."""
SOAK = Plan()


@pytest.mark.alone
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(ALWAYS, marks=pytest.mark.timeout(180), id="short"),
        pytest.param(SOAK, marks=[pytest.mark.soak, pytest.mark.timeout(1800)], id="thousand"),
    ],
)
async def test_slow_peers_delay_no_other_client(plan: Plan, tmp_path: Path) -> None:
    report = await run(plan, tmp_path / "gateway.log")
    print_line("crowd", report.line())
    assert not report.failures, "\n".join(report.failures)
    if plan is SOAK:
        record("crowd", report.line())
