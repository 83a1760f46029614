"""Quantiles and summaries of numbers. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated between the nearest two (numpy.percentile's default)."""
    if not ordered:
        return math.nan
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN without values."""
    return sum(values) / len(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution. All values are NaN if it is empty."""

    count: int
    mean: float
    std: float
    least: float
    most: float
    p10: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Summary":
        """Summarize values."""
        ordered = sorted(values)
        middle = mean(ordered)
        deviation = math.sqrt(mean([(each - middle) ** 2 for each in ordered])) if ordered else math.nan
        least, most = (ordered[0], ordered[-1]) if ordered else (math.nan, math.nan)
        quantiles = [quantile(ordered, share) for share in (0.1, 0.5, 0.9, 0.99)]
        return cls(len(ordered), middle, deviation, least, most, *quantiles)
