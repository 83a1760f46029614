"""The policy ExpectedWait and its state: a prompt goes to the engine where all prompts together lose least time. Pure.

The expected wait at an engine is (tokens of its backlog + tokens of this prompt that are not in its cache) / its rate.
All tokens are estimates in one unit; rates are learned in the same unit, so a constant error cancels.

The wait is one part of the cost. Besides, each token that an engine computes delays the prompts that come to it until
it is idle again. So tokens that are not cached count more the busier the engines are, and a conversation stays where
its cache is (`docs/gateway/estimates.md`, "Expected wait").

Each worker has one. It tracks what all workers of its gateway sent (`shared_log`), and nothing of other gateways.
"""

from collections.abc import Mapping, Sequence
from math import exp, inf
from typing import Final

from pdx_proxy.balancing.prefill.backlog import Computed, PrefillEngine, PrefillLeg
from pdx_proxy.balancing.prefill.prefix_cache import MOST_TOKENS
from pdx_proxy.payload.prompt_blocks import PromptBlocks

TOLERANCE: Final = 1.05
"""Costs that differ by less are equal: equal engines take turns, so that prompts spread over their caches."""
RECENT_SECONDS: Final = 60.0
"""After this time, a prompt counts e times less in what is recent."""
_DECAY_SECONDS: Final = 1.0
"""How often recent counts decay."""
_DELAYED: Final = 2.0
"""Prompts that a token delays, for each prompt that comes to an engine while it works on its backlog: this one, and one
that comes because it takes longer. `benchmarks/goodput` compared 0.5, 1, 2 and 4."""
_MOST_DELAYED: Final = 128.0
"""Above this number more prompts change nothing: the prompt stays where its cache is."""
_RECENT_WEIGHT: Final = 0.05
"""How much a second of recent work costs: of idle engines, the one that has had the least work gets a new prompt."""
_SEQUENCE_TOKENS: Final = 128
"""What a sequence that an aggregated engine decodes costs a prompt that it gets, as tokens to prefill. With the step
model of `pdx_sim.profiles`, a sequence lengthens 100 steps as much as 100 to 200 tokens lengthen one."""


class ExpectedWait:
    """Owner of what was sent to the engines and what was learned about them. Times are seconds of one clock."""

    __slots__ = ("_decayed_at", "_engines", "_longest", "all")

    def __init__(self) -> None:
        self._engines: dict[str, PrefillEngine] = {}
        self._longest: Mapping[str, int] = {}
        self._decayed_at = 0.0
        self.all = Computed()
        """What all engines together have computed."""

    @property
    def engines(self) -> Mapping[str, PrefillEngine]:
        """The engines by name."""
        return self._engines

    def engine(self, name: str) -> PrefillEngine:
        """Return the engine with this name, a new one if there is none. It is valid until it is forgotten."""
        found = self._engines.get(name)
        if found is None:
            found = self._engines[name] = PrefillEngine(self.all, self._longest.get(name, MOST_TOKENS))
        return found

    def bound(self, longest: Mapping[str, int]) -> None:
        """Set the most tokens of a prompt at each engine, by name; absent: not known."""
        self._longest = longest
        for name, engine in self._engines.items():
            engine.longest = longest.get(name, MOST_TOKENS)

    def choose(
        self,
        engines: Sequence[PrefillEngine],
        prompt: PromptBlocks,
        now: float,
        cursor: int = 0,
        shares: Sequence[float] | None = None,
        sequences: Sequence[float] | None = None,
        refused: Sequence[bool] | None = None,
    ) -> int:
        """Return the index of the engine with the least cost.

        Of equals, it is the one whose last prompt is the longest ago; of those without any, `cursor` selects one.
        `shares`: for each engine, how much of its share it may get, above 0 and up to 1 (see `slow_start`).
        `sequences`: for each engine, how many requests it has, where the engine decodes them too.
        `refused`: for each engine, whether it has refused a prompt recently, so that its little work is no merit.
        """
        costs = self._costs(engines, prompt, now, None if refused is None else _usual_work(engines, refused))
        if sequences is not None:
            for index, engine in enumerate(engines):
                costs[index] += _SEQUENCE_TOKENS * sequences[index] / (engine.rate(now) or 1.0)
        if shares is not None:
            costs = [cost / share for cost, share in zip(costs, shares, strict=True)]
        least = costs[0]
        for cost in costs:
            if cost < least:
                least = cost
        most = least * TOLERANCE
        count, found = len(costs), -1
        at = cursor % count
        for _ in range(count):
            if costs[at] <= most and (found < 0 or _is_before(engines[at], engines[found], refused is not None)):
                found = at
            at = at + 1 if at + 1 < count else 0
        return found

    def waits(self, engines: Sequence[PrefillEngine], prompt: PromptBlocks, now: float) -> list[float]:
        """Return for each engine in how many seconds it would have prefilled the prompt.

        While no rate has been measured at all, a second is a token.
        """
        return [engine.wait(engine.left(prompt), engine.rate(now) or 1.0, now) for engine in engines]

    def _costs(
        self, engines: Sequence[PrefillEngine], prompt: PromptBlocks, now: float, recents: Sequence[float] | None
    ) -> list[float]:
        """Return for each engine the seconds that all prompts together lose if it gets this one.

        `recents`: for each engine, what counts as its recent tokens; None: those that it has computed.
        """
        if now - self._decayed_at > _DECAY_SECONDS:
            self._decay(now)
        delayed_per_second = _DELAYED * self.all.recent / (RECENT_SECONDS * len(self._engines))  # per second and engine
        costs: list[float] = []
        for index, engine in enumerate(engines):
            speed = engine.rate(now)
            own = engine.left(prompt)
            if speed <= 0.0:
                costs.append(float(engine.backlog + own))
                continue
            wait = engine.wait(own, speed, now)
            delayed = delayed_per_second * wait
            if delayed > _MOST_DELAYED:
                delayed = _MOST_DELAYED
            recent = engine.recent if recents is None else recents[index]
            costs.append(wait + (delayed * own + _RECENT_WEIGHT * (recent + engine.backlog)) / speed)
        return costs

    def _decay(self, now: float) -> None:
        factor = exp(-(now - self._decayed_at) / RECENT_SECONDS)
        self._decayed_at = now
        self.all.recent *= factor
        for engine in self._engines.values():
            engine.recent *= factor

    def sent(self, engine: PrefillEngine, prompt: PromptBlocks, now: float, learns: bool = True) -> PrefillLeg:
        """The engine gets the prompt. Call `answered(now)` of the leg when it has prefilled it, or `dropped()`.

        `learns`: whether the answer comes when the prefill ends. It does not if it comes when decoding ends.
        """
        return engine.sent(prompt, now, learns)

    def received(self, engine: PrefillEngine, prompt: PromptBlocks, now: float, learns: bool) -> PrefillLeg:
        """The same for a prompt that another worker has sent."""
        return engine.sent(prompt, now, learns, own=False)

    def forget(self, name: str) -> None:
        """The engine has restarted or is gone. Its open legs change nothing any more."""
        self._engines.pop(name, None)


def _is_before(engine: PrefillEngine, other: PrefillEngine, refusals: bool) -> bool:
    """Whether it is an engine's turn before that of another. What it has refused was a turn, if engines refuse."""
    return engine.tried_at < other.tried_at if refusals else engine.sent_at < other.sent_at


def _usual_work(engines: Sequence[PrefillEngine], refused: Sequence[bool]) -> list[float]:
    """Return the recent tokens of each engine; of one that has refused a prompt, no fewer than all others have."""
    least = inf
    for engine, shy in zip(engines, refused, strict=True):
        if not shy:
            least = min(least, engine.recent)
    if least == inf:  # the prompts may be at fault
        least = 0.0
    return [max(engine.recent, least) if shy else engine.recent for engine, shy in zip(engines, refused, strict=True)]
