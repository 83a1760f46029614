"""The histograms of a gateway's phases, and their quantiles. Pure."""

import math
from collections.abc import Mapping
from typing import Final

PHASES: Final = "pdx_phase_seconds_bucket"
Buckets = Mapping[float, float]
"""Upper bound in seconds -> number of requests that took at most that long."""


def read_phases(page: str) -> dict[str, dict[float, float]]:
    """Return the histograms of phases from a gateway's /metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    phases: dict[str, dict[float, float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == PHASES:
                phases.setdefault(sample.labels["phase"], {})[float(sample.labels["le"])] = sample.value
    return phases


def quantile(buckets: Buckets, share: float) -> float:
    """Return the value below which that share of a histogram lies, interpolated in its bucket; NaN if it is empty."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return math.nan
    low, below = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= share * total:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (share * total - below) / max(count - below, 1e-9)
        low, below = bound, count
    return low
