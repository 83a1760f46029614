"""Alerts shown to fire in a real Prometheus by causing their faults, and to stay silent beside a healthy deployment."""

from pathlib import Path

import pytest

from scripts.alerts import ALERTS
from tests.dashboards.troubles import OPERATOR, SLOW, TROUBLES, all_fire, hurried, wanted


@pytest.mark.timeout(150)
@pytest.mark.usefixtures("programs")
async def test_alerts_fire_for_what_is_broken_and_not_for_what_is_healthy(tmp_path: Path) -> None:
    seen = await all_fire(tmp_path)

    assert wanted() <= set(seen), f"never: {wanted() - set(seen)}"
    assert not [each for each in seen if each[0] == "healthy"], seen


def test_every_alert_is_caused_or_named() -> None:
    caused = {alert for trouble in TROUBLES for alert in trouble.alerts} | OPERATOR | SLOW

    assert caused == {(alert.name, next(iter(alert.labels.values()), "")) for alert in ALERTS}


def test_durations_are_divided() -> None:
    assert hurried("expr: rate(x[5m]) > y[1h]\n    for: 15m\n    labels:") == (
        "expr: rate(x[3000ms]) > y[36000ms]\n    for: 9000ms\n    labels:"
    )
