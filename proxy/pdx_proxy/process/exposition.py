"""The gateway's metrics in Prometheus' text format, created from the counters at each scrape."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pdx_api.names import Role, Split
from pdx_api.version import pdx_version
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import BUCKETS


class _Collector:
    def __init__(self, report: Mapping[str, Any], endpoints: Iterable[Endpoint]) -> None:
        self._report = report
        self._engines = list(endpoints)

    def collect(self) -> Iterable[Metric]:
        report = self._report
        yield from _request_families(report)
        yield from _selection_families(report)
        yield from _open_families(report)
        yield from _endpoint_families(report, self._engines)
        yield from _prefill_families(report.get("prefill", {}))
        yield _itl_family(report.get("decode", {}))
        yield _gauge("pdx_build_info", "1, with the version of the gateway.", "version", {_version(): 1})
        yield from _setting_families(report)
        arrivals = report.get("arrivals", {}).get("decode", {})
        yield _gauge(
            "pdx_remote_prompt_tokens_ratio",
            "Share of a decode engine's prompt tokens of the last 30 s whose KV it loaded from other engines.",
            "endpoint",
            {name: each["outside"] / each["promptTokens"] for name, each in arrivals.items() if each["promptTokens"]},
        )
        if "verification" in report:
            yield from _probe_families(report["verification"])


def _setting_families(report: Mapping[str, Any]) -> Iterable[Metric]:
    """Settings with which alerts compare what the gateway measures."""
    split = report.get("split", Split.AUTO)
    yield _gauge("pdx_split", "1 for the setting of routing.split in force.", "mode", {m: m == split for m in Split})
    yield _gauge(
        "pdx_slo_seconds", "The objectives of spec.slo that are set: ttft, tpot.", "objective", report.get("slo", {})
    )


def _request_families(report: Mapping[str, Any]) -> Iterable[Metric]:
    """Requests, attempts and hand-offs that have ended."""
    for name, text, label, values in (
        ("pdx_requests", "Requests, by outcome.", "outcome", report["outcomes"]),
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
        (
            "pdx_requests_quarantined",
            "Requests that were refused because the same request, or others of the client, had killed engines.",
            "reason",
            report["quarantined"],
        ),
        ("pdx_not_split", "Requests that the gateway did not split, by reason.", "reason", report["notSplit"]),
        (
            "pdx_local_prefills",
            "Requests that could be split but were prefilled by the decode engine, by reason.",
            "reason",
            report["localPrefills"],
        ),
    ):
        yield _counter(name, text, label, values)
    yield CounterMetricFamily("pdx_response_chunks", "Chunks of responses written to clients.", value=report["chunks"])
    yield CounterMetricFamily(
        "pdx_retries_refused", "Retries refused because the retry budget was used up.", value=report["retriesRefused"]
    )
    yield _counter(
        "pdx_trace_spans",
        "Spans of traces: exported, dropped (too many waited), failed (the receiver did not accept them), limited (one "
        "for each unsampled request that failed or was slow, but was above 20 in its second).",
        "result",
        report.get("spans", {}),
    )
    yield _histogram("pdx_phase_seconds", "Duration of each phase of a request.", report["phases"])


def _selection_families(report: Mapping[str, Any]) -> Iterable[Metric]:
    """Endpoint selections, by role."""
    for name, text, label, by_role in (
        ("pdx_endpoint_selections", "Endpoint selections, by the policy that decided.", "policy", report["choices"]),
        ("pdx_affinity_selections", "Endpoint selections by an affinity key, by result.", "result", report["affinity"]),
    ):
        family = CounterMetricFamily(name, text, labels=["role", label])
        for role, counts in by_role.items():
            for value, count in counts.items():
                family.add_metric([role, value], count)
        yield family


def _open_families(report: Mapping[str, Any]) -> Iterable[Metric]:
    """Requests and hand-offs that are open."""
    in_flight = report["inFlight"]
    for name, text, count in (
        ("pdx_requests_in_flight", "Open requests, waiting ones included.", in_flight["requests"]),
        ("pdx_requests_queued", "Requests that wait in the queue.", in_flight["queued"]),
        ("pdx_settlements_in_flight", "Ended hand-offs whose KV is still being released.", in_flight["settling"]),
    ):
        yield GaugeMetricFamily(name, text, value=count)


def _endpoint_families(report: Mapping[str, Any], engines: Sequence[Endpoint]) -> Iterable[Metric]:
    """State of each endpoint, and the number of endpoints by role and state."""
    legs = GaugeMetricFamily("pdx_legs_in_flight", "Open requests to each engine.", labels=["endpoint", "role"])
    limits = GaugeMetricFamily(
        "pdx_leg_limit", "Most open requests to an engine that can be selected.", labels=["endpoint", "role"]
    )
    leg_limits = report.get("legLimits", {})
    for engine in engines:
        legs.add_metric([engine.name, engine.role], report["legs"].get(engine.name, 0))
        if engine.name in leg_limits:
            limits.add_metric([engine.name, engine.role], leg_limits[engine.name])
    pinned = _gauge(
        "pdx_prefill_kv_pinned",
        "Finished prefills whose KV no decode engine has read yet.",
        "endpoint",
        {engine.name: report["held"].get(engine.name, 0) for engine in engines if engine.role is Role.PREFILL},
    )
    leaked = _gauge(
        "pdx_decode_kv_leaked",
        "Hand-offs for which the decode engine keeps KV blocks until its time-out or restart: the KV never came.",
        "endpoint",
        {engine.name: engine.lost for engine in engines if engine.role is Role.DECODE},
    )
    states = GaugeMetricFamily("pdx_endpoints", "Endpoints by role and state.", labels=["role", "state"])
    for role in sorted({engine.role for engine in engines}):
        for state in State:
            states.add_metric([role, state], sum(e.role is role and e.state is state for e in engines))
    return legs, limits, pinned, leaked, states


def _prefill_families(report: Mapping[str, Any]) -> Iterable[Metric]:
    """What the policy ExpectedWait expects, from `PrefillBalancer.report`."""
    yield _counter(
        "pdx_prefill_tokens",
        "Estimated tokens of prompts sent to engines: cached (expected in the engine's cache) or computed.",
        "source",
        report.get("tokens", {}),
    )
    yield _gauge(
        "pdx_prefill_backlog_tokens",
        "Tokens that an engine has to prefill, by an estimate.",
        "endpoint",
        {name: tokens / report["counted"][name] for name, tokens in report.get("backlog", {}).items()},
    )
    yield _gauge(
        "pdx_prefill_rate_tokens_per_second",
        "Tokens that an engine prefills in a second.",
        "endpoint",
        {name: rate / report["rated"][name] for name, rate in report.get("rates", {}).items()},
    )


def _itl_family(report: Mapping[str, Any]) -> Metric:
    """What the streams of engines have shown, from `DecodeBalancer.report`."""
    return _gauge(
        "pdx_decode_itl_seconds",
        "Inter-token latency of an engine with its current requests, measured from its streams.",
        "endpoint",
        {name: seconds / report["measured"][name] for name, seconds in report.get("itl", {}).items()},
    )


def _probe_families(report: Mapping[str, Any]) -> Iterable[Metric]:
    """Transfer probes, from `TransferProber.report`."""
    yield _counter("pdx_transfer_probes", "Transfer probes, by result.", "result", report["results"])
    yield _histogram("pdx_transfer_probe_seconds", "Duration of each phase of a transfer probe.", report["phases"])
    yield _gauge("pdx_transfer_probe_pairs", "Pairs of engines, by verdict.", "verdict", report["pairs"])
    if report["lastSuccess"] is not None:
        yield GaugeMetricFamily(
            "pdx_transfer_probe_last_success_timestamp_seconds",
            "When a transfer probe last saw KV move, in Unix time.",
            value=report["lastSuccess"],
        )


@cache
def _version() -> str:
    """PDX's version. To read it takes milliseconds, and every page shows it."""
    return pdx_version()


def render(report: Mapping[str, Any], endpoints: Iterable[Endpoint]) -> bytes:
    """Return the metrics page of a report (see `Counters.report`) and the endpoints."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(report, endpoints))
    return generate_latest(registry)


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def _histogram(name: str, text: str, phases: Mapping[str, Mapping[str, Any]]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=["phase"])
    for phase, histogram in phases.items():
        family.add_metric([phase], _cumulative(histogram["counts"]), histogram["total"])
    return family


def _cumulative(counts: Iterable[int]) -> list[tuple[str, float]]:
    return list(zip([*map(str, BUCKETS), "+Inf"], accumulate(counts), strict=True))
