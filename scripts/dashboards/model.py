"""The types of a dashboard, and the expressions that panels share."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

OWN: Final = 'namespace=~"$namespace",pdx_dev_deployment=~"$deployment"'
"""Selects the gateways and engines of the dashboard's variables, by labels that the PodMonitors set."""
PREFILL: Final = f'{OWN},pdx_dev_role="prefill"'
DECODE: Final = f'{OWN},pdx_dev_role=~"decode|aggregated"'
ENGINES: Final = f'{OWN},pdx_dev_role=~"prefill|decode|aggregated"'
WINDOW: Final = "$__rate_interval"

Metric = str | tuple[str, ...]
"""A name, or several of which each engine has one."""


class Unit(StrEnum):
    """Grafana's names of units."""

    SECONDS = "s"
    PER_SECOND = "reqps"
    EVENTS = "cps"
    SHARE = "percentunit"
    COUNT = "short"
    BYTES_PER_SECOND = "Bps"
    TIMESTAMP = "dateTimeFromNow"


class Kind(StrEnum):
    """Grafana's names of panels."""

    LINES = "timeseries"
    NUMBER = "stat"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and the name of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One question and the queries that answer it."""

    title: str
    answers: str
    """What the panel shows, and which value is bad."""
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    stacked: bool = False
    bad_above: float | None = None
    """The value from which on it is red."""
    bad_below: float | None = None
    plotted: bool = False
    """Whether docs/observability/dashboards.md shows it."""


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: rows of panels."""

    uid: str
    title: str
    question: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    per_deployment: bool = True
    """Whether namespace and PDDeployment can be chosen."""

    @property
    def panels(self) -> list[Panel]:
        """All panels in order."""
        return [panel for _, panels in self.rows for panel in panels]


def rate(metric: Metric, selector: str = OWN, *, by: str = "") -> str:
    """Events of a counter per second, summed."""
    return f"sum{_by(by)}({' or '.join(f'rate({each}{{{selector}}}[{WINDOW}])' for each in _names(metric))})"


def ratio(part: str, whole: str) -> str:
    """A share: 0 without the part, no value without the whole."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def mean(histogram: Metric, selector: str = OWN, *, by: str = "") -> str:
    """Mean of a histogram's observations."""
    sums, counts = (rate(_names(histogram, ending), selector, by=by) for ending in ("_sum", "_count"))
    return f"{sums} / ({counts} > 0)"


def quantile(share: float, histogram: Metric, selector: str = OWN, *, by: str = "") -> str:
    """A quantile of a histogram's observations."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, {rate(_names(histogram, '_bucket'), selector, by=labels)})"


def quantiles(histogram: Metric, selector: str = OWN, *, name: str = "") -> tuple[Query, ...]:
    """Median, 95th and 99th percentile, named after `name`."""
    prefix = f"{name} " if name else ""
    return tuple(
        Query(quantile(share, histogram, selector), f"{prefix}p{share * 100:g}") for share in (0.5, 0.95, 0.99)
    )


def phase(name: str) -> str:
    """Selects one phase of pdx_phase_seconds."""
    return f'{OWN},phase="{name}"'


def total(metric: str, selector: str = OWN, *, by: str = "") -> str:
    """A gauge, summed."""
    return f"sum{_by(by)}({metric}{{{selector}}})"


def of_transfers(name: str) -> tuple[str, ...]:
    """The metric of every connector that counts its transfers."""
    return tuple(f"vllm:{connector}_{name}" for connector in ("nixl", "mooncake"))


def failed_transfers(*, by: str = "") -> str:
    """Failures per second of the engines that move KV; with Mooncake, also of those that do not receive it.

    One failed transfer of Mooncake counts on P and on D, so a sum over both roles has the larger of the two.
    """
    names = ("nixl_num_failed_transfers", "mooncake_num_failed_transfers", "mooncake_num_failed_recvs")
    nixl, sent, received = (f"rate(vllm:{name}_total{{{ENGINES}}}[{WINDOW}])" for name in names)
    if by:
        return f"sum{_by(by)}({nixl} or {sent} + {received})"
    return f"sum({nixl}) or (sum({sent}) > sum({received})) or sum({received})"


def _names(metric: Metric, ending: str = "") -> tuple[str, ...]:
    return tuple(f"{each}{ending}" for each in ((metric,) if isinstance(metric, str) else metric))


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
