"""How much of a prompt's KV each engine would have to receive. Pure.

A D keeps the KV of the prompts that it got in its prefix cache, and receives only what it has not. So a conversation
stays at its D unless that D has many more requests than another, or no room.
"""

from collections.abc import Sequence
from typing import Final

from pdx_proxy.balancing.prefill.backlog import PrefillEngine
from pdx_proxy.payload.prompt_blocks import PromptBlocks

_LONGEST_MEAN: Final = 1000
"""The usual length is the mean of about so many prompts."""
_SHORT: Final = 8192
"""Tokens of the shortest usual length."""
FEW: Final = 2048
"""To receive fewer tokens takes a D milliseconds: it counts as if it had them."""


class KeptPrompts:
    """Owner of the usual length of prompts."""

    __slots__ = ("_count", "_mean")

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0

    def add(self, tokens: int) -> None:
        """An engine has got the KV of a prompt with so many tokens."""
        if self._count < _LONGEST_MEAN:
            self._count += 1
        self._mean += (tokens - self._mean) / self._count

    def missing(self, engines: Sequence[PrefillEngine], prompt: PromptBlocks) -> list[float] | None:
        """Return how much more each engine would receive than the one that has most; 1 is a prompt of the usual length.

        Where prompts are short, 1 is a prompt of `_SHORT` tokens. Return None if all would receive about the same.
        """
        cached = [engine.cache.cached(prompt) for engine in engines]
        most = max(cached)
        if most - min(cached) < FEW or self._mean <= 0.0:
            return None
        usual = max(self._mean, _SHORT)
        return [(most - each) / usual if most - each >= FEW else 0.0 for each in cached]
