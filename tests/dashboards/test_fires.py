"""Alerts fire in a real Prometheus for faulty deployments, and stay silent for a healthy one."""

from pathlib import Path

import pytest

from scripts.alerts import ALERTS
from tests.dashboards.faulty import FAULTY, OPERATOR, SLOW, all_fire, expected_alerts, hurried


@pytest.mark.paced  # its engines and clients share one loop, and each second of a stall is fifty for the rules
@pytest.mark.timeout(220)
@pytest.mark.usefixtures("programs")
async def test_alerts_fire_for_faulty_deployments_only(tmp_path: Path) -> None:
    seen = await all_fire(tmp_path)

    assert expected_alerts() <= set(seen), f"never: {expected_alerts() - set(seen)}"
    assert not [each for each in seen if each[0] == "healthy"], seen


def test_every_alert_is_caused_or_named() -> None:
    caused = {alert for faulty in FAULTY for alert in faulty.alerts} | OPERATOR | SLOW

    assert caused == {(alert.name, next(iter(alert.labels.values()), "")) for alert in ALERTS}


def test_durations_are_divided() -> None:
    assert hurried("expr: rate(x[5m]) > y[1h]\n    for: 15m\n    labels:") == (
        "expr: rate(x[6000ms]) > y[72000ms]\n    for: 18000ms\n    labels:"
    )
