"""Loads on simulated engines: each campaign for seconds always, for minutes in `make soak` (`ARGS='-k sizes'`: one)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.soak import blocked, bursts, capacity, crowd, impatience, neighbours, overload, returns, sizes
from benchmarks.soak.frame import Report
from benchmarks.soak.results import print_line, record
from pdx_api.names import Order

RUN: Final[Mapping[str, Callable[[Any, Path], Awaitable[Report[Any]]]]] = {
    "overload": overload.run,
    "capacity": capacity.run,
    "impatience": impatience.run,
    "sizes": sizes.run,
    "crowd": crowd.run,
    "neighbours": neighbours.run,
    "returns": returns.run,
    "bursts": bursts.run,
}
SHORT: Final[Mapping[str, Any]] = {
    "overload": overload.Plan(Order.PREFILL_FIRST, 6.0, keeps=0.7),
    "capacity": capacity.Plan(
        Order.PREFILL_FIRST, 1, overload=8.0, short=3.0, returns=0.0, calm=1.0, keeps=0.85, recovers=0.5, waits=4.0
    ),
    # Served in order of arrival, five times the load has a tenth of the answers.
    "impatience": impatience.Plan(
        Order.PREFILL_FIRST, phase=8.0, prefill=0.4, patience=2.0, loads=(1.0, 5.0), keeps=0.6
    ),
    "sizes": sizes.SHORT,
    "crowd": crowd.SHORT,
    "neighbours": neighbours.SHORT,
    "returns": returns.SHORT,
    "bursts": bursts.SHORT,
}
"""Shorter phases vary more, and the machine may be busy."""
LONG: Final[Mapping[str, Sequence[Any]]] = {
    "overload": [overload.Plan(order, 600.0) for order in Order],
    "capacity": [capacity.Plan(order, workers, overload=600.0) for order in Order for workers in (1, 2)],
    "impatience": [impatience.Plan(order) for order in Order],
    "sizes": [sizes.Plan(order, gateways) for order in Order for gateways in (1, 2)],
    "crowd": [crowd.Plan()],
    "neighbours": [neighbours.Plan(order) for order in Order],
    "returns": [returns.Plan(Order.PREFILL_FIRST, streams) for streams in (16, 64, 256)],
    "bursts": [bursts.Plan(Order.PREFILL_FIRST, n, known) for known in (True, False) for n in (64, 256, 512)],
}
SOAK: Final = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.paced
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *(pytest.param(name, plan, marks=pytest.mark.timeout(180), id=f"{name}-short") for name, plan in SHORT.items()),
        *(pytest.param(name, plan, marks=SOAK, id=f"{name}-long") for name, plans in LONG.items() for plan in plans),
    ],
)
async def test_load(name: str, plan: Any, tmp_path: Path) -> None:
    report = await RUN[name](plan, tmp_path / "gateway.log")
    print_line(name, report.line())
    assert not report.failures, "\n".join(report.failures)
    if plan is not SHORT[name]:
        record(name, report.line())


@pytest.mark.paced
@pytest.mark.parametrize(
    "plan",
    [
        *(pytest.param(plan, marks=pytest.mark.timeout(180), id=f"short-{n}") for n, plan in enumerate(blocked.SHORT)),
        *(pytest.param(plan, marks=SOAK, id=f"cell-{n}") for n, plan in enumerate(blocked.cells(10.0, seconds=20.0))),
        *(pytest.param(plan, marks=SOAK, id=f"long-{n}") for n, plan in enumerate(blocked.pairs())),
    ],
)
async def test_blocked_kv(plan: blocked.Plan, tmp_path: Path) -> None:
    report = await blocked.run(plan, tmp_path / "gateway.log")
    print_line("blocked", report.line())
    assert not report.failures, "\n".join(report.failures[:20])
    if plan not in blocked.SHORT:
        record("blocked", report.line())
