"""The types of rules, and the expressions that they share."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ONE: Final = "namespace, pdx_dev_deployment"
"""Labels that identify a PDDeployment."""
WHICH: Final = "{{ $labels.namespace }}/{{ $labels.pdx_dev_deployment }}"
"""In texts: the PDDeployment."""
DOCTOR: Final = "kubectl pdx doctor {{ $labels.pdx_dev_deployment }} -n {{ $labels.namespace }}"
"""The command to run for an alert about a PDDeployment."""


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
    command: str = DOCTOR


@dataclass(frozen=True, slots=True)
class Record:
    """A series that alerts share. Rules of one group are evaluated in order, so an alert sees the newest value."""

    name: str
    expr: str


def rate(metric: str, window: str, *, by: str = ONE, before: str = "") -> str:
    """Events of a counter per second, of each PDDeployment. `before`: how long ago the window ends."""
    return f"sum by ({by}) (rate({metric}[{window}]{f' offset {before}' if before else ''}))"


def total(metric: str) -> str:
    """A gauge, summed for each PDDeployment."""
    return f"sum by ({ONE}) ({metric})"


def objects(metric: str) -> str:
    """The operator's series of PDDeployments, with the labels of their pods' series."""
    named = f'label_replace({metric}, "namespace", "$1", "object", "(.*)/.*")'
    return f'max by ({ONE}) (label_replace({named}, "pdx_dev_deployment", "$1", "object", ".*/(.*)"))'


def unless(expr: str, *worse: Record) -> str:
    """An expression, without the PDDeployments for which a worse state holds: an alert for that state fires."""
    return " unless ".join((f"({expr})", *(record.name for record in worse)))
