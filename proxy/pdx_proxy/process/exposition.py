"""The gateway's metrics in Prometheus' text format, made from counters when they are scraped."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pdx_api.names import Role
from pdx_api.version import pdx_version
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.process.verification_metrics import canary_families
from pdx_proxy.telemetry.counters import BUCKETS


class _Collector:
    def __init__(self, report: Mapping[str, Any], endpoints: Iterable[Endpoint]) -> None:
        self._report = report
        self._engines = list(endpoints)

    def collect(self) -> Iterable[Metric]:
        report = self._report
        yield from _what_became(report)
        yield from _what_was_chosen(report)
        yield from _what_is_open(report)
        yield from _of_engines(report, self._engines)
        build = GaugeMetricFamily("pdx_build_info", "1, with the version of the gateway.", labels=["version"])
        build.add_metric([pdx_version()], 1)
        yield build
        arrivals = GaugeMetricFamily(
            "pdx_remote_prompt_tokens_ratio",
            "Share of a D's prompt tokens of the last 30 s whose KV it loaded from other engines.",
            labels=["endpoint"],
        )
        for name, tokens in report.get("arrivals", {}).get("decode", {}).items():
            if tokens["promptTokens"]:
                arrivals.add_metric([name], tokens["outside"] / tokens["promptTokens"])
        yield arrivals
        if "canary" in report:
            yield from canary_families(report["canary"])


def _what_became(report: Mapping[str, Any]) -> Iterable[Metric]:
    """Of requests, attempts, hand-offs."""
    for name, text, label, values in (
        ("pdx_requests", "Requests by how they ended.", "outcome", report["outcomes"]),
        (
            "pdx_settlements",
            "Hand-offs that ended early, by how their KV blocks were released.",
            "result",
            report["settlements"],
        ),
        (
            "pdx_retries",
            "Attempts that failed before the first event, by reason.",
            "reason",
            {**dict.fromkeys(Reason, 0), **report["retries"]},
        ),
        ("pdx_ejections", "Ejected endpoints, by cause.", "reason", report.get("ejections", {})),
        ("pdx_requests_shed", "Requests that were shed, by reason.", "reason", report["sheds"]),
        ("pdx_not_split", "Requests that the gateway did not split, by reason.", "reason", report["notSplit"]),
        (
            "pdx_local_prefills",
            "Requests that could be split but were prefilled by D, by reason.",
            "reason",
            report["localPrefills"],
        ),
    ):
        yield _counter(name, text, label, values)
    yield CounterMetricFamily("pdx_response_chunks", "Chunks of responses written to clients.", value=report["chunks"])
    yield CounterMetricFamily(
        "pdx_retries_refused", "Retries refused because the retry budget was used up.", value=report["retriesRefused"]
    )
    phases = HistogramMetricFamily("pdx_phase_seconds", "Duration of each phase of a request.", labels=["phase"])
    for phase, histogram in report["phases"].items():
        phases.add_metric([phase], _cumulative(histogram["counts"]), histogram["total"])
    yield phases


def _what_was_chosen(report: Mapping[str, Any]) -> Iterable[Metric]:
    """Of engines, by role."""
    for name, text, label, by_role in (
        ("pdx_endpoint_selections", "Endpoint selections, by the policy that decided.", "policy", report["choices"]),
        ("pdx_affinity_selections", "Endpoint selections by an affinity key, by result.", "result", report["affinity"]),
    ):
        family = CounterMetricFamily(name, text, labels=["role", label])
        for role, counts in by_role.items():
            for value, count in counts.items():
                family.add_metric([role, value], count)
        yield family


def _what_is_open(report: Mapping[str, Any]) -> Iterable[Metric]:
    """Now, of requests."""
    in_flight = report["inFlight"]
    for name, text, count in (
        ("pdx_requests_in_flight", "Open requests, waiting ones included.", in_flight["requests"]),
        ("pdx_requests_queued", "Requests that wait in the queue.", in_flight["queued"]),
        ("pdx_settlements_in_flight", "Hand-offs that are being settled.", in_flight["settling"]),
    ):
        yield GaugeMetricFamily(name, text, value=count)


def _of_engines(report: Mapping[str, Any], engines: Sequence[Endpoint]) -> Iterable[Metric]:
    """Now, by endpoint, and how many there are of each kind."""
    legs = GaugeMetricFamily("pdx_legs_in_flight", "Legs in flight by endpoint.", labels=["endpoint", "role"])
    held = GaugeMetricFamily(
        "pdx_prefill_kv_pinned", "Finished prefills whose KV no D has read yet.", labels=["endpoint"]
    )
    lost = GaugeMetricFamily(
        "pdx_decode_kv_leaked", "Hand-offs whose KV blocks D keeps until its time-out or restart.", labels=["endpoint"]
    )
    for engine in engines:
        legs.add_metric([engine.name, engine.role], report["legs"].get(engine.name, 0))
        if engine.role is Role.PREFILL:
            held.add_metric([engine.name], report["held"].get(engine.name, 0))
        if engine.role is Role.DECODE:
            lost.add_metric([engine.name], engine.lost)
    states = GaugeMetricFamily("pdx_endpoints", "Endpoints by role and state.", labels=["role", "state"])
    for role in sorted({engine.role for engine in engines}):
        for state in State:
            states.add_metric([role, state], sum(e.role is role and e.state is state for e in engines))
    return legs, held, lost, states


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
