"""What each engine has to prefill for this worker, and how fast it does so. Pure: times are arguments.

A leg is open from the moment it is sent until it is answered or dropped. Engines are expected to answer in the order of
sending; a leg that overtakes another changes the estimate, not the sums.
"""

from math import inf
from typing import Final

from pdx_proxy.balancing.prefill.prefix_cache import PrefixCache
from pdx_proxy.balancing.prefill.rate import PrefillRate, rate
from pdx_proxy.balancing.prefill.shared_log import SharedLog

_RATED_SECONDS: Final = 0.1


class PrefillEngine:
    """One engine: its backlog, its rate and its cache."""

    __slots__ = (
        "_all",
        "_oldest",
        "_rate",
        "_rated_at",
        "backlog",
        "busy_since",
        "cache",
        "expected_hits",
        "legs",
        "measured",
        "recent",
        "sent_at",
    )

    def __init__(self, everything: PrefillRate) -> None:
        """`everything` is the rate of all engines together, shared with the other engines."""
        self._all = everything
        self._oldest: PrefillLeg | None = None
        self._rate = 0.0
        self._rated_at = -inf
        self.cache = PrefixCache()
        self.measured = PrefillRate()
        self.legs: dict[PrefillLeg, None] = {}
        """Open legs, the oldest first."""
        self.backlog = 0
        """Their tokens."""
        self.busy_since = 0.0
        """When it began what it works on: at its last answer, or else when it got its first open leg."""
        self.sent_at = -inf
        """When it got its last leg."""
        self.recent = 0.0
        """Tokens that it got to compute recently: see `ExpectedWait`."""
        self.expected_hits = 0
        """Tokens that were expected to be in its cache, of all legs that it has answered."""

    def rate(self, now: float) -> float:
        """Return tokens per second, as they were at most 0.1 s ago; 0 while no engine has been measured."""
        age = now - self._rated_at
        if 0.0 < age < _RATED_SECONDS:
            return self._rate
        mean = self._all.mean()
        if mean <= 0.0:
            return 0.0
        self._rated_at = now
        self._rate = rate(self.measured, mean, self._oldest is None, now)
        return self._rate

    def wait(self, tokens: int, speed: float, now: float) -> float:
        """Return in how many seconds it will have computed its backlog and so many tokens, at its rate."""
        seconds, oldest = (self.backlog + tokens) / speed, self._oldest
        if oldest is None:
            return seconds
        done = now - self.busy_since  # a part of the oldest leg
        most = oldest.tokens / speed
        return seconds - (most if done > most else done)

    def sent(self, tokens: int, cached: int, now: float, learns: bool = True) -> "PrefillLeg":
        """Open a leg that computes so many tokens and finds so many in the cache.

        `learns`: whether its answer shows the end of its prefill.
        """
        leg = PrefillLeg(self, tokens, cached, learns)
        if self._oldest is None:
            self._oldest = leg
            self.busy_since = now
        self.sent_at = now
        self.recent += tokens
        self.legs[leg] = None
        self.backlog += tokens
        return leg

    def close(self, leg: "PrefillLeg") -> bool:
        """The leg is not open any more. Return whether it was."""
        if leg not in self.legs:
            return False
        del self.legs[leg]
        self.backlog -= leg.tokens
        if leg is self._oldest:
            self._oldest = next(iter(self.legs)) if self.legs else None
        return True

    def answered(self, leg: "PrefillLeg", now: float) -> None:
        """Learn from the answer of a leg that has been closed just now."""
        short = self._all.is_short(leg.tokens)
        if short and self._oldest is not None:
            return
        seconds = now - self.busy_since
        self.busy_since = now
        if seconds > 0.0 and not short:
            self.measured.add(leg.tokens, seconds, now)
            self._all.add(leg.tokens, seconds, now)


class PrefillLeg:
    """A prompt that an engine prefills. Its owner calls `answered` or `dropped`; the first call counts."""

    __slots__ = ("_engine", "_learns", "cached", "log", "number", "tokens")

    def __init__(self, engine: PrefillEngine, tokens: int, cached: int, learns: bool) -> None:
        self._engine = engine
        self._learns = learns
        self.tokens = tokens
        """Tokens that the engine has to compute."""
        self.cached = cached
        """Tokens that it is expected to have in its cache."""
        self.log: SharedLog | None = None
        """Where other workers read that it has ended, under its number."""
        self.number = 0

    def answered(self, now: float) -> None:
        """The engine has prefilled the prompt."""
        engine = self._engine
        if engine.close(self):
            engine.expected_hits += self.cached
            if self._learns:
                engine.answered(self, now)
            if self.log is not None:
                self.log.ended(self.number, now)

    def dropped(self) -> None:
        """The engine does not work on the prompt any more, or never did."""
        if self._engine.close(self) and self.log is not None:
            self.log.ended(self.number, None)
