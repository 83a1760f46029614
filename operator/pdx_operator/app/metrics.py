"""What the operator counts of itself, and what it knows of the objects it works on, in Prometheus' text format."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from pdx_api.names import ConditionType
from pdx_api.version import pdx_version
from pdx_operator.observed.condition_summary import UNKNOWN, Standing
from pdx_operator.plan.rollout import Phase

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RESULTS: Final = ("ok", "failed", "fault")
_STATUSES: Final = ("True", "False", UNKNOWN)
_STATES: Final = (*(phase.value for phase in Phase), "GatewayStarting", "InvalidSpec", UNKNOWN)
"""Reasons of the condition Progressing; any other is Unknown."""

Standings = Callable[[], Mapping[str, Standing]]
"""The objects that the operator works on, by namespace and name."""


class Metrics:
    """Owner of the counters of one operator. `now` is the time in seconds since the epoch."""

    def __init__(self, now: Callable[[], float]) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._now = now
        self._registry = CollectorRegistry()
        self._turns = Histogram(
            "pdx_operator_reconcile_seconds",
            "How long a turn of an object's loop takes, by how it ended: ok, failed (tried again), or fault.",
            ["result"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._last_turn = Gauge(
            "pdx_operator_last_reconcile_timestamp_seconds",
            "When a turn last ended so, in seconds since the epoch.",
            ["result"],
            registry=self._registry,
        )
        self._requests = Counter(
            "pdx_operator_api_requests",
            "Requests to the API server, by HTTP verb and status; code 0 where none came.",
            ["verb", "code"],
            registry=self._registry,
        )
        build = Gauge(
            "pdx_operator_build_info", "1, with the version of the operator.", ["version"], registry=self._registry
        )
        build.labels(pdx_version()).set(1)
        for result in _RESULTS:
            self._turns.labels(result)

    def show_objects(self, standings: Standings) -> None:
        """Have `standings` called, when the page is read, for what is known of the objects."""
        self._registry.register(_Objects(standings, self._now))

    def count_turn(self, result: str, seconds: float) -> None:
        """A turn ended."""
        self._turns.labels(result).observe(seconds)
        self._last_turn.labels(result).set(self._now())

    def count_request(self, verb: str, code: int) -> None:
        """A request was answered with a status; 0 when it was not."""
        self._requests.labels(verb, str(code)).inc()

    def render(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


class _Objects:
    """What the status of every object says, counted when it is asked for."""

    def __init__(self, standings: Standings, now: Callable[[], float]) -> None:
        self._standings = standings
        self._now = now

    def collect(self) -> Iterable[Metric]:
        standings = self._standings()
        yield _conditions(standings.values())
        yield _rollouts(standings.values())
        yield self._ages(standings)
        yield GaugeMetricFamily(
            "pdx_operator_unreconciled_objects",
            "PDDeployments whose newest spec has not been worked on yet.",
            value=sum(standing.behind for standing in standings.values()),
        )

    def _ages(self, standings: Mapping[str, Standing]) -> Metric:
        family = GaugeMetricFamily(
            "pdx_operator_rollout_seconds",
            "How long a PDDeployment has been on its way to what its spec asks for.",
            labels=["object"],
        )
        now = self._now()
        for name, standing in standings.items():
            told = standing.conditions[ConditionType.PROGRESSING]
            if told.status == "True" and told.since:
                family.add_metric([name], max(0.0, now - told.since))
        return family


def _conditions(standings: Iterable[Standing]) -> Metric:
    family = GaugeMetricFamily(
        "pdx_operator_objects", "PDDeployments by what a condition says.", labels=["condition", "status"]
    )
    tally = Tally((kind, told.status) for standing in standings for kind, told in standing.conditions.items())
    for kind in ConditionType:
        for status in _STATUSES:
            family.add_metric([kind, status], tally[kind, status])
    return family


def _rollouts(standings: Iterable[Standing]) -> Metric:
    family = GaugeMetricFamily(
        "pdx_operator_rollouts",
        "PDDeployments by the reason of their condition Progressing.",
        labels=["state"],
    )
    reasons = [standing.conditions[ConditionType.PROGRESSING].reason for standing in standings]
    tally = Tally(reason if reason in _STATES else UNKNOWN for reason in reasons)
    for state in _STATES:
        family.add_metric([state], tally[state])
    return family
