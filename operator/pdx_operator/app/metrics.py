"""The operator's metrics in Prometheus' text format: its own counters, and the states of PDDeployments."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from pdx_api.names import ConditionType
from pdx_api.version import pdx_version
from pdx_operator.app.object_summary import UNKNOWN, ObjectSummary
from pdx_operator.plan.rollout import Phase
from pdx_operator.status.causes import INVALID
from pdx_operator.status.conditions import PAUSED

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RESULTS: Final = ("ok", "failed", "fault")
_STATUSES: Final = ("True", "False", UNKNOWN)
STATES: Final = (
    *(phase.value for phase in Phase),
    *("GatewayStarting", "GatewayUpgradeWaiting", PAUSED, INVALID, UNKNOWN),
)
"""Reasons of the condition Progressing; any other reason counts as Unknown."""

Summaries = Callable[[], Mapping[str, ObjectSummary]]
"""Returns the summaries of all PDDeployments, by NAMESPACE/NAME."""


class Metrics:
    """Owner of the operator's counters. `now` returns seconds since the epoch."""

    def __init__(self, now: Callable[[], float]) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._now = now
        self._registry = CollectorRegistry()
        self._reconciles = Histogram(
            "pdx_operator_reconcile_seconds",
            "Duration of a reconcile of one object, by result: ok, failed (it is retried), or fault (in the operator).",
            ["result"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._last_reconcile = Gauge(
            "pdx_operator_last_reconcile_timestamp_seconds",
            "Time of the last reconcile with this result, in seconds since the epoch.",
            ["result"],
            registry=self._registry,
        )
        self._requests = Counter(
            "pdx_operator_api_requests",
            "Requests to the API server, by HTTP verb and status; code 0 without an answer.",
            ["verb", "code"],
            registry=self._registry,
        )
        self._conflicts = Counter(
            "pdx_operator_ownership_conflicts",
            "PDDeployments of the operator's scope that another operator was found to hold.",
            registry=self._registry,
        )
        build = Gauge(
            "pdx_operator_build_info", "1, with the version of the operator.", ["version"], registry=self._registry
        )
        build.labels(pdx_version()).set(1)
        for result in _RESULTS:
            self._reconciles.labels(result)

    def add_objects(self, summaries: Summaries) -> None:
        """Add metrics of objects; `summaries` is called whenever the metrics are read."""
        self._registry.register(_Computed(lambda: _objects(summaries(), self._now())))

    def add_states(self, namespaces: Callable[[], Mapping[str, bool | None]], leads: Callable[[], bool]) -> None:
        """Add metrics of namespaces and of the Lease; both functions are called whenever the metrics are read."""
        self._registry.register(_Computed(lambda: _states(namespaces(), leads())))

    def count_conflict(self) -> None:
        """Count a PDDeployment that another operator holds."""
        self._conflicts.inc()

    def count_reconcile(self, result: str, seconds: float) -> None:
        """Count a reconcile."""
        self._reconciles.labels(result).observe(seconds)
        self._last_reconcile.labels(result).set(self._now())

    def count_request(self, verb: str, code: int) -> None:
        """Count a request and its status; 0 without an answer."""
        self._requests.labels(verb, str(code)).inc()

    def render(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self._registry)


class _Computed:
    """Metrics that are computed when they are read."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


def _states(namespaces: Mapping[str, bool | None], leads: bool) -> Iterable[Metric]:
    """Metrics of the operator's state."""
    yield GaugeMetricFamily(
        "pdx_operator_leading", "1 while this operator works: it holds the Lease, or needs none.", value=leads
    )
    family = GaugeMetricFamily(
        "pdx_operator_namespace_synced",
        "1 once a watched namespace has been read; 0 before, or if it cannot be read. Empty: all namespaces.",
        labels=["namespace"],
    )
    for namespace, state in namespaces.items():
        family.add_metric([namespace], bool(state))
    yield family


def _objects(summaries: Mapping[str, ObjectSummary], now: float) -> Iterable[Metric]:
    """Metrics of all objects."""
    yield _conditions(summaries.values())
    yield _conditions_of_objects(summaries)
    yield _rollouts(summaries.values())
    yield _ages(summaries, now)
    yield GaugeMetricFamily(
        "pdx_operator_unreconciled_objects",
        "PDDeployments whose newest spec has not been reconciled yet.",
        value=sum(summary.behind for summary in summaries.values()),
    )


def _ages(summaries: Mapping[str, ObjectSummary], now: float) -> Metric:
    family = GaugeMetricFamily(
        "pdx_operator_rollout_seconds",
        "How long the condition Progressing of a PDDeployment has been True, in seconds.",
        labels=["object"],
    )
    for name, summary in summaries.items():
        condition = summary.conditions[ConditionType.PROGRESSING]
        if condition.status == "True" and condition.since:
            family.add_metric([name], max(0.0, now - condition.since))
    return family


def _conditions(summaries: Iterable[ObjectSummary]) -> Metric:
    family = GaugeMetricFamily(
        "pdx_operator_objects", "PDDeployments by the status of each condition.", labels=["condition", "status"]
    )
    tally = Tally((kind, condition.status) for summary in summaries for kind, condition in summary.conditions.items())
    for kind in ConditionType:
        for status in _STATUSES:
            family.add_metric([kind, status], tally[kind, status])
    return family


def _conditions_of_objects(summaries: Mapping[str, ObjectSummary]) -> Metric:
    family = GaugeMetricFamily(
        "pdx_operator_object_condition",
        "1 for the present status of each condition of a PDDeployment.",
        labels=["object", "condition", "status"],
    )
    for name, summary in summaries.items():
        for kind, condition in summary.conditions.items():
            family.add_metric([name, kind, condition.status], 1)
    return family


def _rollouts(summaries: Iterable[ObjectSummary]) -> Metric:
    family = GaugeMetricFamily(
        "pdx_operator_rollouts",
        "PDDeployments by the reason of their condition Progressing.",
        labels=["state"],
    )
    reasons = [summary.conditions[ConditionType.PROGRESSING].reason for summary in summaries]
    tally = Tally(reason if reason in STATES else UNKNOWN for reason in reasons)
    for state in STATES:
        family.add_metric([state], tally[state])
    return family
