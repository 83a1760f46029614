"""What canaries have shown, in Prometheus' text format."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pdx_proxy.telemetry.counters import BUCKETS


def canary_families(report: Mapping[str, Any]) -> Iterable[Metric]:
    """The metrics of `TransferProber.report`."""
    results = CounterMetricFamily("pdx_transfer_probes", "Transfer probes, by result.", labels=["result"])
    for result, count in report["results"].items():
        results.add_metric([result], count)
    yield results
    seconds = HistogramMetricFamily(
        "pdx_transfer_probe_seconds", "Duration of each phase of a transfer probe.", labels=["phase"]
    )
    for phase, histogram in report["phases"].items():
        bounds = [*map(str, BUCKETS), "+Inf"]
        seconds.add_metric([phase], list(zip(bounds, accumulate(histogram["counts"]), strict=True)), histogram["total"])
    yield seconds
    pairs = GaugeMetricFamily("pdx_transfer_probe_pairs", "Pairs of engines, by verdict.", labels=["verdict"])
    for verdict, count in report["pairs"].items():
        pairs.add_metric([verdict], count)
    yield pairs
    if report["lastSuccess"] is not None:
        yield GaugeMetricFamily(
            "pdx_transfer_probe_last_success_timestamp_seconds",
            "When a transfer probe last saw KV move, in Unix time.",
            value=report["lastSuccess"],
        )
