"""What each engine has to prefill for this worker, and how fast it does so. Pure: times are arguments.

A leg is open from the moment it is sent until it is answered or dropped. Engines are expected to answer in the order of
sending; a leg that overtakes another changes the estimate, not the sums.

An open leg is a *reservation*: it is part of the backlog, and of nothing else that outlives it. Only an answer counts
it in what is known of its engine, so a prompt that no engine has computed leaves no trace.
"""

from math import inf
from typing import Final

from pdx_proxy.balancing.prefill.prefix_cache import MOST_TOKENS, PrefixCache
from pdx_proxy.balancing.prefill.rate import PrefillRate, rate
from pdx_proxy.balancing.prefill.shared_log import SharedLog
from pdx_proxy.payload.prompt_blocks import PromptBlocks

_RATED_SECONDS: Final = 0.1


class Reservation:
    """A request at one engine, for the policies. Its owner calls `answered` or `dropped`; the first call counts."""

    __slots__ = ()

    def answered(self, now: float) -> None:
        """The engine has answered 200."""
        raise NotImplementedError

    def dropped(self) -> None:
        """The engine has refused or lost the request, does not work on it any more, or never did."""
        raise NotImplementedError


class Computed:
    """What all engines together have computed."""

    __slots__ = ("cached_tokens", "prompt_tokens", "rate", "recent")

    def __init__(self) -> None:
        self.rate = PrefillRate()
        self.recent = 0.0
        """Prompts computed recently: see `ExpectedWait`."""
        self.prompt_tokens = 0
        """Tokens of the prompts that this worker has sent."""
        self.cached_tokens = 0
        """Those of them that were expected to be in the engine's cache."""


class PrefillEngine:
    """One engine: its backlog, its rate and its cache."""

    __slots__ = (
        "_all",
        "_disturbed",
        "_oldest",
        "_rate",
        "_rated_at",
        "_used_at",
        "backlog",
        "busy_since",
        "cache",
        "expected_hits",
        "legs",
        "longest",
        "measured",
        "recent",
        "sent_at",
        "tried_at",
    )

    def __init__(self, everything: Computed, longest: int = MOST_TOKENS) -> None:
        """`everything` is of all engines together, shared with the other engines."""
        self._all = everything
        self._disturbed = False
        """Whether a leg that it worked on was dropped, so that its next answer shows no rate."""
        self._oldest: PrefillLeg | None = None
        self._rate = 0.0
        self._rated_at = -inf
        self._used_at = -inf
        """When it got the last leg of those that it has answered."""
        self.longest = longest
        """The most tokens of a prompt. It refuses a longer one, so an estimate above this is wrong."""
        self.cache = PrefixCache()
        self.measured = PrefillRate()
        self.legs: dict[PrefillLeg, None] = {}
        """Open legs, the oldest first."""
        self.backlog = 0
        """Their tokens."""
        self.busy_since = 0.0
        """When it began what it works on: at its last answer, or else when it got its first open leg."""
        self.sent_at = -inf
        """When it got its last leg, without those that it does not compute."""
        self.tried_at = -inf
        """When it got its last leg."""
        self.recent = 0.0
        """Tokens that it has computed recently: see `ExpectedWait`."""
        self.expected_hits = 0
        """Tokens that were expected to be in its cache, of all legs that it has answered."""

    def rate(self, now: float) -> float:
        """Return tokens per second, as they were at most 0.1 s ago; 0 while no engine has been measured."""
        age = now - self._rated_at
        if 0.0 < age < _RATED_SECONDS:
            return self._rate
        mean = self._all.rate.mean()
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

    def left(self, prompt: PromptBlocks) -> int:
        """Return how many tokens of a prompt it would have to compute: the last one even if its cache has all."""
        return self._left(prompt.tokens, self.cache.cached(prompt))

    def _left(self, tokens: int, cached: int) -> int:
        if tokens > self.longest:
            tokens = self.longest
        return tokens - cached + 1 if tokens > cached else 1

    def sent(self, prompt: PromptBlocks, now: float, learns: bool = True, own: bool = True) -> "PrefillLeg":
        """Open a leg. `learns`: whether its answer shows the end of its prefill. `own`: this worker has sent it."""
        cached = self.cache.reserve(prompt)
        leg = PrefillLeg(self, prompt, self._left(prompt.tokens, cached), cached, now, learns, own)
        if self._oldest is None:
            self._oldest = leg
            self.busy_since = now
        self.sent_at = self.tried_at = now
        self.legs[leg] = None
        self.backlog += leg.tokens
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

    def count(self, leg: "PrefillLeg") -> None:
        """It has computed a leg that has been closed just now."""
        everything = self._all
        self.cache.touch(leg.prompt, self.longest)
        self.recent += leg.tokens
        self.expected_hits += leg.cached
        if leg.sent_at > self._used_at:
            self._used_at = leg.sent_at
        everything.recent += 1.0
        if leg.own:
            everything.prompt_tokens += leg.tokens + leg.cached - 1
            everything.cached_tokens += leg.cached

    def learn(self, leg: "PrefillLeg", now: float) -> None:
        """Learn from the answer of a leg that has been closed just now."""
        everything = self._all.rate
        short = everything.is_short(leg.tokens)
        if short and self._oldest is not None:
            return
        seconds = now - self.busy_since
        self.busy_since = now
        if self._disturbed:
            self._disturbed = False
        elif seconds > 0.0 and not short:
            self.measured.add(leg.tokens, seconds, now)
            everything.add(leg.tokens, seconds, now)

    def take_back(self, leg: "PrefillLeg") -> bool:
        """It does not compute a leg. Return whether the leg was open."""
        before = self._oldest
        if not self.close(leg):
            return False
        self.cache.withdraw(leg.prompt)
        last = next(reversed(self.legs)).sent_at if self.legs else -inf
        self.sent_at = max(self._used_at, last)
        if self._oldest is not None and self._oldest is not before:
            self._disturbed = True
            self.busy_since = max(self.busy_since, self._oldest.sent_at)
        return True


class PrefillLeg(Reservation):
    """A prompt that an engine prefills."""

    __slots__ = ("_engine", "_learns", "cached", "log", "number", "own", "prompt", "sent_at", "tokens")

    def __init__(
        self,
        engine: PrefillEngine,
        prompt: PromptBlocks,
        tokens: int,
        cached: int,
        sent_at: float,
        learns: bool,
        own: bool,
    ) -> None:
        self._engine = engine
        self._learns = learns
        self.prompt = prompt
        self.tokens = tokens
        """Tokens that the engine has to compute."""
        self.cached = cached
        """Tokens that it is expected to have in its cache."""
        self.sent_at = sent_at
        self.own = own
        """Whether this worker has sent it."""
        self.log: SharedLog | None = None
        """Where other workers read that it has ended, under its number."""
        self.number = 0

    def answered(self, now: float) -> None:
        """The engine has prefilled the prompt."""
        engine = self._engine
        if engine.close(self):
            engine.count(self)
            if self._learns:
                engine.learn(self, now)
            if self.log is not None:
                self.log.ended(self.number, now)

    def dropped(self) -> None:
        """The engine does not work on the prompt any more, or never did."""
        if self._engine.take_back(self) and self.log is not None:
            self.log.ended(self.number, None)
