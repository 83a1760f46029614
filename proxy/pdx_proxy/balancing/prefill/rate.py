"""How many tokens an engine prefills in a second, learned from the legs that it answers. Pure.

Tokens of the last seconds are divided by the time in which the engine had at least one leg, so legs that overlap count
once. Both sums decay with time.
"""

from math import exp
from typing import Final

DECAY_SECONDS: Final = 10.0
"""After this time a measurement weighs e times less."""
_BUSY_DECAY_SECONDS: Final = 5.0
"""The same after this time of newer measurements. So an engine that is measured rarely has a new rate soon, too."""
_FORGET_SECONDS: Final = 20.0
"""After this time without a leg, the mean of all begins to replace an engine's own rate."""
_PRIOR_SECONDS: Final = 0.1
"""How much the average of all engines weighs in an engine's rate, as time measured. It is the rate of a new engine."""
_SHORT: Final = 0.125
"""A leg that computes less than this part of the usual tokens shows an engine's fixed costs and not its rate."""
_LONGEST_SECONDS: Final = 100.0
"""A longer pause decays no further, so that the sums never become zero."""


class PrefillRate:
    """The rate of one engine, or of all engines together."""

    __slots__ = ("at", "seconds", "squares", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0
        """Tokens computed."""
        self.seconds = 0.0
        """The time in which they were computed."""
        self.squares = 0.0
        """The sum of the squares of each leg's tokens."""
        self.at = 0.0
        """When the sums were last changed."""

    def add(self, tokens: float, seconds: float, now: float) -> None:
        """A leg with so many tokens has ended; before, the engine worked for so long without an end of one."""
        age, busy = now - self.at, seconds
        if age > _LONGEST_SECONDS:
            age = _LONGEST_SECONDS
        elif age < 0.0:
            age = 0.0
        if busy > _LONGEST_SECONDS:
            busy = _LONGEST_SECONDS
        factor = exp(-age / DECAY_SECONDS - busy / _BUSY_DECAY_SECONDS)
        self.tokens = self.tokens * factor + tokens
        self.seconds = self.seconds * factor + seconds
        self.squares = self.squares * factor + tokens * tokens
        self.at = now

    def is_short(self, tokens: float) -> bool:
        """Whether a leg computes so few tokens that it does not show the rate."""
        return tokens * self.tokens < _SHORT * self.squares

    def mean(self) -> float:
        """Return tokens per second; 0 if nothing was measured."""
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0


def rate(own: PrefillRate, mean: float, idle: bool, now: float) -> float:
    """Return an engine's tokens per second: its own rate, drawn to the mean of all where it has been measured little.

    An engine without legs is drawn to the mean further the longer ago its measurement is. So an engine that was slow is
    tried again.
    """
    prior = _PRIOR_SECONDS
    if idle:
        age = (now - own.at) / _FORGET_SECONDS
        cube = age * age * age
        prior *= 1.0 + cube * cube  # a power is a call
    return (own.tokens + prior * mean) / (own.seconds + prior)
