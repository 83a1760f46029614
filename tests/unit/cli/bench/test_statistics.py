"""Quantiles as numpy's, and summaries."""

import math

import pytest

from pdx_cli.bench.load.lateness import LIMIT, Lateness
from pdx_cli.bench.statistics import Summary, quantile


def test_quantiles_are_interpolated() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.99) == pytest.approx(3.97)
    assert quantile([7.0], 0.9) == 7.0
    assert math.isnan(quantile([], 0.5))


def test_a_summary() -> None:
    found = Summary.of([4.0, 2.0])
    assert (found.count, found.mean, found.std, found.least, found.most) == (2, 3.0, 1.0, 2.0, 4.0)
    assert math.isnan(Summary.of([]).p50)


def test_lateness() -> None:
    assert not Lateness.of([0.001] * 99 + [-0.002]).is_limit
    assert Lateness.of([0.001] * 97 + [LIMIT * 2] * 3).is_limit
    assert Lateness.of([]).samples == 0
