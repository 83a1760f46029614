"""ITL = a + b * batch, learned for each engine that answers. Pure: times are arguments.

Measurements of the last seconds count most. An engine's slope is drawn to that of all engines where its own batch has
hardly varied: its present ITL is measured exactly, what follows from a larger batch is an estimate.
"""

from collections.abc import Sequence
from math import exp
from typing import Final

DECAY_SECONDS: Final = 6.0
"""After this time a measurement weighs e times less."""
FORGET_SECONDS: Final = 20.0
"""After this time without a measurement, an engine must be measured again."""
_LONGEST_SECONDS: Final = 100.0
_ENOUGH_TOKENS: Final = 20.0
"""Tokens from which on a measurement has its full weight."""
_LEARNED: Final = 2.0
"""Measurements with full weight after which the engines count as measured."""
_USUAL_SLOPE: Final = 0.02
"""b / ITL before anything shows it: larger than on GPUs (0.007 for 70 billion parameters on four H100)."""
_MOST_SLOPE: Final = 0.9
"""Most of an ITL that may come from b * batch."""
_SPREAD: Final = 0.1
"""A batch that varies by less than this part of itself, or by one, shows no slope."""
_SLOPE_GAIN: Final = 0.2


class Line:
    """ITL as a function of the batch, in seconds. Immutable by convention."""

    __slots__ = ("base", "slope")

    def __init__(self, base: float, slope: float) -> None:
        self.base = base
        self.slope = slope

    def at(self, batch: float) -> float:
        """Return the ITL of a batch."""
        return self.base + self.slope * batch

    def batch(self, itl: float) -> float:
        """Return the largest batch with this ITL; 0 or less if even a single sequence takes longer."""
        return (itl - self.base) / self.slope if self.slope > 0.0 else 0.0


class _Sums:
    """Weighted sums of measurements, which decay with time."""

    __slots__ = ("at", "count", "x", "xx", "xy", "y")

    def __init__(self) -> None:
        self.count = self.x = self.y = self.xx = self.xy = self.at = 0.0

    def add(self, batch: float, itl: float, weight: float, now: float) -> None:
        factor = exp(-min(max(now - self.at, 0.0), _LONGEST_SECONDS) / DECAY_SECONDS)
        self.at = now
        self.count = self.count * factor + weight
        self.x = self.x * factor + weight * batch
        self.y = self.y * factor + weight * itl
        self.xx = self.xx * factor + weight * batch * batch
        self.xy = self.xy * factor + weight * batch * itl

    def means(self) -> tuple[float, float, float, float]:
        """The means of batch and ITL, the batch's variance, and the covariance."""
        x, y = self.x / self.count, self.y / self.count
        return x, y, max(self.xx / self.count - x * x, 0.0), self.xy / self.count - x * y


def _slope(covariance: float, variance: float, batch: float, usual: float) -> tuple[float, float]:
    """The slope, and how much of it comes from these measurements."""
    doubt = (1.0 + _SPREAD * batch) ** 2
    return (covariance + doubt * usual) / (variance + doubt), variance / (variance + doubt)


def _line(batch: float, itl: float, slope: float) -> Line:
    """The line through a measured point with this slope, as far as that is possible."""
    slope = max(0.0, min(slope, _MOST_SLOPE * itl / batch if batch > 0.0 else slope))
    return Line(itl - slope * batch, slope)


class CommonSlope:
    """The slope that all engines of one role have shown, each by its own batches.

    Differences between engines do not count: where each gets what it decodes as fast as the others, they would hide it.
    """

    __slots__ = ("_weight", "slope")

    def __init__(self) -> None:
        self.slope = 0.0
        """Seconds per sequence. It stays while no batch varies."""
        self._weight = 0.0

    @property
    def learned(self) -> bool:
        """Whether enough has been measured to decide by it."""
        return self._weight >= _LEARNED

    def update(self, slope: float, trust: float, itl: float, weight: float) -> None:
        """An engine with this ITL has shown this slope."""
        if not self._weight:
            self.slope = _USUAL_SLOPE * itl
        self._weight = min(self._weight + weight, _LEARNED)
        self.slope += _SLOPE_GAIN * trust * (max(slope, 0.0) - self.slope)


class EngineITL:
    """What one engine has shown."""

    __slots__ = ("_common", "_sums")

    def __init__(self, common: CommonSlope) -> None:
        """`common` is shared with all engines of the role."""
        self._common = common
        self._sums = _Sums()

    @property
    def measured(self) -> bool:
        """Whether it has been measured at all."""
        return self._sums.count > 0.0

    def stale(self, now: float) -> bool:
        """Whether its last measurement is so old that it may have changed."""
        return now - self._sums.at > FORGET_SECONDS

    def add(self, batch: float, itl: float, tokens: float, now: float) -> None:
        """While so many sequences ran, tokens followed each other in `itl` seconds; so many tokens showed that."""
        weight = min(1.0, tokens / _ENOUGH_TOKENS)
        if itl <= 0.0 or weight <= 0.0:
            return
        self._sums.add(batch, itl, weight, now)
        x, y, variance, covariance = self._sums.means()
        slope, trust = _slope(covariance, variance, x, self._common.slope)
        self._common.update(slope, trust, y, weight)

    def line(self) -> Line:
        """Its line; call it only after a measurement."""
        x, y, variance, covariance = self._sums.means()
        return _line(x, y, _slope(covariance, variance, x, self._common.slope)[0])


def common_line(lines: Sequence[Line], batch: float) -> Line:
    """Return the line of the engine whose ITL at this batch is the median, the lower one of two."""
    return sorted(lines, key=lambda line: line.at(batch))[(len(lines) - 1) // 2]
