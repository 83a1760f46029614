"""Each fault of the table fires its alert and no other, in a real Prometheus and a real Alertmanager."""

from pathlib import Path

import pytest

from scripts.alerts import ALERTS
from tests.dashboards.faults import FAULTS, table
from tests.dashboards.faulty import BROKEN, FASTER, alert_of, hurried, misjudged, rig, wrong
from tests.documents import ROOT

STALL = 0.7
"""Seconds."""


@pytest.mark.paced  # its engines and clients share one loop, and each second of a stall is 25 for the rules
@pytest.mark.timeout(200)
@pytest.mark.usefixtures("programs")
async def test_each_fault_fires_its_alert_alone(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        async with rig(tmp_path / name, seconds=10 * 60 / FASTER + 8) as running:
            seen = await running.run(quiet=3.0)
        found = [*wrong(seen), *misjudged(running.found, running.shown)]
        if not found or running.stall < STALL:
            break  # a machine that stopped for so long has shown nothing

    assert not found, "\n".join((f"longest stall: {running.stall:.1f} s", *found))
    blocked = {name for name in BROKEN if alert_of(name) == "PDXNotSplitting"} - {"no-p"}  # their prefill engines serve
    assert not {name: lines for name, lines in running.confirmed.items() if lines and name not in blocked}


@pytest.mark.soak
@pytest.mark.usefixtures("programs")
async def test_within_three_minutes_and_ten(tmp_path: Path) -> None:
    """The rules as they are, for half an hour: the healthy deployment at full load fires nothing."""
    async with rig(tmp_path, seconds=30 * 60, faster=1, every=15.0) as running:
        seen = await running.run(quiet=120.0)

    found = [*wrong(seen, minute=60.0), *misjudged(running.found, running.shown)]
    assert not found, "\n".join((f"longest stall: {running.stall:.1f} s", *found))


def test_every_alert_is_in_the_table() -> None:
    assert {fault.alert for fault in FAULTS} - {""} == {alert.name for alert in ALERTS}
    assert {*BROKEN} == {fault.name for fault in FAULTS} - {"pdx-system", "pdx-team", "old", "own-router"}


def test_the_page_has_the_table() -> None:
    assert table() in (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")


def test_durations_are_divided() -> None:
    assert hurried("interval: 30s\nexpr: rate(x[5m] offset 5m) > y[1d]\n    for: 15m\n    labels:", 50) == (
        "interval: 600ms\nexpr: rate(x[6000ms] offset 6000ms) > y[1728000ms]\n    for: 18000ms\n    labels:"
    )
