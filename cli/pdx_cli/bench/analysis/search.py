"""The search for the goodput: the highest rate at which enough requests are good. Rates in, the next rate out. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GOAL: Final = 0.9
"""The share of good requests that goodput requires."""
FACTOR: Final = 2.0
"""Between two rates while the goodput lies outside those measured."""
PRECISION: Final = 1.05
"""The search ends when a rate that is too high and one that is not are this factor apart, or less."""
REPEAT_FACTOR: Final = 1.12
"""The same factor in a repeat, which begins where the first search has ended."""
_MOST_STEPS: Final = 24


@dataclass(frozen=True, slots=True)
class Measured:
    """One step: a rate and the share of good requests."""

    rate: float
    share: float


@dataclass(frozen=True, slots=True)
class Search:
    """One search. It keeps no state: the same measurements give the same next rate.

    Invariant: the goodput lies between the highest rate that was good below all that were not, and the lowest that was
    not; each step halves that interval, or moves its open end by `factor`.
    """

    start: float
    """The first rate, in requests per second."""
    goal: float = GOAL
    factor: float = FACTOR
    precision: float = PRECISION
    least: float = 0.001
    """Rate below which the goodput counts as 0."""

    def next_rate(self, measured: Sequence[Measured]) -> float | None:
        """Return the rate to measure next; None when the search has ended."""
        if not measured:
            return self.start
        low, high = self._bounds(measured)
        if len(measured) >= _MOST_STEPS:
            return None
        if high is None:
            assert low is not None
            return low.rate * self.factor
        if low is None:
            rate = high.rate / self.factor
            return rate if rate >= self.least else None
        return None if high.rate / low.rate <= self.precision else math.sqrt(low.rate * high.rate)

    def goodput(self, measured: Sequence[Measured]) -> float:
        """Return the rate at which the goal is met, interpolated between the last two rates; 0 if none met it."""
        low, high = self._bounds(measured) if measured else (None, None)
        if low is None:
            return 0.0
        if high is None or low.share <= self.goal:
            return low.rate
        part = (low.share - self.goal) / (low.share - high.share)
        return float(low.rate * (high.rate / low.rate) ** part)

    def remaining(self, measured: Sequence[Measured]) -> int:
        """Return about how many steps are left."""
        low, high = self._bounds(measured) if measured else (None, None)
        outside = 0 if low and high else 1 if measured else 2
        ratio = high.rate / low.rate if low and high else self.factor
        if ratio <= self.precision:
            return 0
        return outside + math.ceil(math.log2(math.log(ratio) / math.log(self.precision)))

    def repeat(self, goodput: float) -> "Search":
        """Return the search of a repeat. It begins at the goodput of the first one and goes in small steps."""
        return Search(goodput, self.goal, REPEAT_FACTOR, self.precision, self.least)

    def _bounds(self, measured: Sequence[Measured]) -> tuple[Measured | None, Measured | None]:
        high = min((each for each in measured if each.share < self.goal), key=lambda each: each.rate, default=None)
        below = [each for each in measured if each.share >= self.goal and (high is None or each.rate < high.rate)]
        return max(below, key=lambda each: each.rate, default=None), high


def expected_steps(repeats: int, arms: int = 1) -> int:
    """Return about how many steps a run takes: one search for each arm, and repeats."""
    first = Search(1.0).remaining(()) + 1
    again = Search(1.0, factor=REPEAT_FACTOR).remaining(()) + 1
    return arms * (first + (repeats - 1) * again)
