"""The gateway's metrics in Prometheus' text format, made from counters when they are scraped."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pdx_api.names import Role
from pdx_api.version import pdx_version
from pdx_proxy.canary_metrics import canary_families
from pdx_proxy.counters import BUCKETS
from pdx_proxy.endpoints import Endpoint, State
from pdx_proxy.failures import Reason


class _Collector:
    def __init__(self, report: Mapping[str, Any], endpoints: Iterable[Endpoint]) -> None:
        self._report = report
        self._endpoints = list(endpoints)

    def collect(self) -> Iterable[Metric]:
        report = self._report
        retries = {**dict.fromkeys(Reason, 0), **report["retries"]}
        yield _counter("pdx_requests", "Requests by how they ended.", "outcome", report["outcomes"])
        yield _counter(
            "pdx_settlements", "Hand-offs that nobody wanted any more, by how they ended.", "how", report["settlements"]
        )
        yield _counter("pdx_retries", "Attempts that failed before the first event, by reason.", "reason", retries)
        ejections = report.get("ejections", {})
        yield _counter("pdx_ejections", "Endpoints that were left out, by cause.", "reason", ejections)
        yield _counter("pdx_sheds", "Requests told to come again later, by reason.", "reason", report["sheds"])
        yield _counter(
            "pdx_not_split", "Requests that were not meant for two engines, by why.", "reason", report["notSplit"]
        )
        yield _counter(
            "pdx_local_prefills",
            "Requests that could be split and were prefilled by D, by why.",
            "reason",
            report["localPrefills"],
        )
        yield CounterMetricFamily("pdx_chunks", "Pieces of answers written to clients.", value=report["chunks"])
        choices = CounterMetricFamily("pdx_choices", "Engines chosen, by what decided.", labels=["role", "policy"])
        for role, policies in report["choices"].items():
            for policy, count in policies.items():
                choices.add_metric([role, policy], count)
        yield choices
        affinity = CounterMetricFamily(
            "pdx_affinity", "Choices by a key, by what became of it.", labels=["role", "result"]
        )
        for role, results in report["affinity"].items():
            for result, count in results.items():
                affinity.add_metric([role, result], count)
        yield affinity
        yield CounterMetricFamily(
            "pdx_retries_refused",
            "Attempts not made because the retry budget was used up.",
            value=report["retriesRefused"],
        )
        phases = HistogramMetricFamily("pdx_phase_seconds", "What requests waited for.", labels=["phase"])
        for phase, histogram in report["phases"].items():
            phases.add_metric([phase], _cumulative(histogram["counts"]), histogram["total"])
        yield phases
        yield GaugeMetricFamily(
            "pdx_requests_in_flight", "Open requests, waiting ones included.", value=report["inFlight"]["requests"]
        )
        yield GaugeMetricFamily(
            "pdx_requests_queued", "Requests that wait for their turn.", value=report["inFlight"]["queued"]
        )
        yield GaugeMetricFamily("pdx_settling", "Hand-offs being settled.", value=report["inFlight"]["settling"])
        legs = GaugeMetricFamily("pdx_legs_in_flight", "Legs in flight by endpoint.", labels=["endpoint", "role"])
        states = GaugeMetricFamily("pdx_endpoints", "Endpoints by role and state.", labels=["role", "state"])
        held = GaugeMetricFamily("pdx_held_kv", "Prefills that no D has taken the KV of yet.", labels=["endpoint"])
        lost = GaugeMetricFamily("pdx_decode_lost", "Hand-offs whose blocks D holds in vain.", labels=["endpoint"])
        for endpoint in self._endpoints:
            legs.add_metric([endpoint.name, endpoint.role], report["legs"].get(endpoint.name, 0))
            if endpoint.role is Role.PREFILL:
                held.add_metric([endpoint.name], report["held"].get(endpoint.name, 0))
            if endpoint.role is Role.DECODE:
                lost.add_metric([endpoint.name], endpoint.lost)
        yield legs
        yield held
        yield lost
        for role in sorted({endpoint.role for endpoint in self._endpoints}):
            for state in State:
                count = sum(e.role is role and e.state is state for e in self._endpoints)
                states.add_metric([role, state], count)
        yield states
        build = GaugeMetricFamily("pdx_build_info", "1, with the version of the gateway.", labels=["version"])
        build.add_metric([pdx_version()], 1)
        yield build
        if "canary" in report:
            yield from canary_families(report["canary"])


def render(report: Mapping[str, Any], endpoints: Iterable[Endpoint]) -> bytes:
    """The metrics page of a report (see `Counters.report`) and the endpoints."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(report, endpoints))
    return generate_latest(registry)


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _cumulative(counts: Iterable[int]) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
