"""Prometheus alerts as data, and the rules file for the chart and for a plain Prometheus."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from scripts.alerts import engines, gateway, operator
from scripts.alerts.model import Alert

ALERTS: Final[tuple[Alert, ...]] = (*engines.ALERTS, *gateway.ALERTS, *operator.ALERTS)
RUNBOOKS: Final = "docs/runbooks/"
"""Prefix of a runbook's URL; the chart may replace it."""

_HEAD: Final = "# Written by `make generate` from scripts/alerts. For a plain Prometheus: name it in rule_files.\n"


def rules_file() -> str:
    """The file's text."""
    groups = [
        {"name": name, "rules": [rule(alert) for alert in alerts]}
        for name, alerts in (
            ("pdx-engines", engines.ALERTS),
            ("pdx-gateways", gateway.ALERTS),
            ("pdx-operator", operator.ALERTS),
        )
    ]
    return _HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, width=10**6, allow_unicode=True)


def rule(alert: Alert) -> Mapping[str, Any]:
    """One alert as a rule of Prometheus."""
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.lasting,
        "labels": {"severity": alert.severity.value, **alert.labels},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{RUNBOOKS}{alert.name}.md",
        },
    }
