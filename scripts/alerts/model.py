"""The type of an alert, and the expressions that alerts share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

ONE: Final = "namespace, pdx_dev_deployment"
"""Labels that identify a PDDeployment."""
WHICH: Final = "{{ $labels.namespace }}/{{ $labels.pdx_dev_deployment }}"
"""In texts: the PDDeployment."""


class Severity(StrEnum):
    """How soon a person should act."""

    CRITICAL = "critical"
    """Now: users are affected."""
    WARNING = "warning"
    """Today: users will be affected, or capacity is wasted."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule; its runbook is docs/runbooks/NAME.md."""

    name: str
    expr: str
    lasting: str
    """How long the expression must hold, as Prometheus writes durations."""
    severity: Severity
    summary: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)


def rate(metric: str, window: str, *, by: str = ONE) -> str:
    """Events of a counter per second, of each PDDeployment."""
    return f"sum by ({by}) (rate({metric}[{window}]))"


def mean(metric: str, window: str, *, by: str = ONE) -> str:
    """A gauge's mean over time, summed for each PDDeployment."""
    return f"sum by ({by}) (avg_over_time({metric}[{window}]))"
