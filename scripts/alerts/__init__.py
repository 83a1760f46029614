"""Prometheus alerts as data, and the rules file for the chart and for a plain Prometheus."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.alerts import operator, users
from scripts.alerts.model import Alert, Record
from scripts.alerts.states import STATES
from scripts.release import names

ALERTS: Final[tuple[Alert, ...]] = (*users.ALERTS, *operator.ALERTS)
RUNBOOKS: Final = f"{names.read(Path(__file__).parents[2]).url}/blob/main/docs/runbooks/"
"""Prefix of a runbook's URL: where packaging/release.toml publishes the project. The chart may replace it."""

_HEAD: Final = "# Written by `make generate` from scripts/alerts. For a plain Prometheus: name it in rule_files.\n"


def rules_file() -> str:
    """The file's text."""
    groups = [_group("pdx-users", (*STATES, *users.ALERTS)), _group("pdx-operator", operator.ALERTS)]
    return _HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, width=10**6, allow_unicode=True)


def _group(name: str, rules: Sequence[Record | Alert]) -> Mapping[str, Any]:
    return {"name": name, "interval": "30s", "rules": [rule(each) for each in rules]}


def rule(each: Record | Alert) -> Mapping[str, Any]:
    """One series or alert as a rule of Prometheus."""
    if isinstance(each, Record):
        return {"record": each.name, "expr": each.expr}
    return {
        "alert": each.name,
        "expr": each.expr,
        "for": each.lasting,
        "labels": {"severity": each.severity.value},
        "annotations": {
            "summary": each.summary,
            "description": f"{each.description} Run: {each.command}",
            "runbook_url": f"{RUNBOOKS}{each.name}.md",
        },
    }
