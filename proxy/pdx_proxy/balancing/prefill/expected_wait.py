"""The policy ExpectedWait and its state: each prompt goes where its prefill is expected to end first. Pure.

The expected wait at an engine is (tokens of its backlog + tokens of this prompt that are not in its cache) / its rate.
All tokens are estimates in one unit; rates are learned in the same unit, so a constant error cancels.

Each worker has one, and tracks only what it sent itself.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pdx_proxy.balancing.prefill.backlog import PrefillEngine, PrefillLeg
from pdx_proxy.balancing.prefill.rate import PrefillRate
from pdx_proxy.payload.prompt_blocks import PromptBlocks

TOLERANCE: Final = 1.05
"""Waits that differ by less are equal: equal engines take turns, so that prompts spread over their caches."""


class ExpectedWait:
    """Owner of what one worker has sent to the engines and learned about them. Times are seconds of one clock."""

    __slots__ = ("_all", "_engines", "cached_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self._engines: dict[str, PrefillEngine] = {}
        self._all = PrefillRate()
        """The rate of all engines together."""
        self.prompt_tokens = 0
        """Tokens of all prompts sent."""
        self.cached_tokens = 0
        """Those of them that were expected to be in the engine's cache."""

    @property
    def engines(self) -> Mapping[str, PrefillEngine]:
        """The engines by name."""
        return self._engines

    def engine(self, name: str) -> PrefillEngine:
        """Return the engine with this name, a new one if there is none. It is valid until it is forgotten."""
        found = self._engines.get(name)
        if found is None:
            found = self._engines[name] = PrefillEngine(self._all)
        return found

    def choose(
        self,
        engines: Sequence[PrefillEngine],
        prompt: PromptBlocks,
        now: float,
        cursor: int = 0,
        shares: Sequence[float] | None = None,
    ) -> int:
        """Return the index of the engine with the least expected wait.

        Of equals, it is the one whose last prompt is the longest ago; of those without any, `cursor` selects one.
        `shares`: for each engine, how much of its share it may get, above 0 and up to 1 (see `slow_start`).
        """
        waits = self.waits(engines, prompt, now)
        if shares is not None:
            waits = [wait / share for wait, share in zip(waits, shares, strict=True)]
        least = waits[0]
        for wait in waits:
            if wait < least:
                least = wait
        most = least * TOLERANCE
        count, found = len(waits), -1
        at = cursor % count
        for _ in range(count):
            if waits[at] <= most and (found < 0 or engines[at].sent_at < engines[found].sent_at):
                found = at
            at = at + 1 if at + 1 < count else 0
        return found

    def waits(self, engines: Sequence[PrefillEngine], prompt: PromptBlocks, now: float) -> list[float]:
        """Return for each engine in how many seconds it would have prefilled the prompt.

        While no rate has been measured at all, a second is a token.
        """
        tokens = prompt.tokens + 1  # an engine computes the last token even if all are in its cache
        return [engine.wait(tokens - engine.cache.cached(prompt), now) for engine in engines]

    def sent(self, engine: PrefillEngine, prompt: PromptBlocks, now: float, learns: bool = True) -> PrefillLeg:
        """The engine gets the prompt. Call `answered(now)` of the leg when it has prefilled it, or `dropped()`.

        `learns`: whether the answer comes when the prefill ends. It does not if it comes when decoding ends.
        """
        cached = engine.cache.touch(prompt)
        self.prompt_tokens += prompt.tokens
        self.cached_tokens += cached
        return engine.sent(prompt.tokens + 1 - cached, cached, now, learns)

    def forget(self, name: str) -> None:
        """The engine has restarted or is gone. Its open legs change nothing any more."""
        self._engines.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Forget all other engines."""
        for name in [name for name in self._engines if name not in names]:
            self.forget(name)
