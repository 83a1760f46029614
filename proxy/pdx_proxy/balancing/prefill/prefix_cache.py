"""Which blocks of prompts an engine has in its prefix cache, from the prompts that it has computed. Pure.

Blocks are evicted like vLLM's (v1/core/block_pool.py): the least recently used prompt first, of a prompt the last block
first. So a block stays at least as long as those that follow it, and the blocks that an engine has of a prompt are
always the first ones.

A prompt that was sent to the engine is *reserved* there until the engine answers. Blocks of reserved prompts are found
like the others, so that prompts with the same beginning come to the same engine. They evict nothing.
"""

from bisect import bisect_right
from collections import OrderedDict
from typing import Any, Final

from pdx_proxy.payload.prompt_blocks import PromptBlocks

UNREPORTED_TOKENS: Final = 262_144
"""Tokens in the cache of an engine that does not report its size."""
MOST_TOKENS: Final = 8_388_608
"""The most tokens that are tracked of one engine. It bounds the memory: docs/gateway/estimates.md, "Expected wait"."""


class PrefixCache:
    """The blocks of one engine."""

    __slots__ = ("_blocks", "_latest", "_reserved", "capacity", "tokens")

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, int] = OrderedDict()
        """Tokens of each block by hash, the next to be evicted first."""
        self._reserved: set[int] = set()
        """Blocks of prompts that the engine has not answered, but for the latest ones."""
        self._latest: list[PromptBlocks] = []
        """Prompts since the last search. Most are answered before the next one, and cost nothing here."""
        self.tokens = 0
        """Their sum."""
        self.capacity = UNREPORTED_TOKENS
        """The most tokens."""

    def __len__(self) -> int:
        return len(self._blocks)

    def cached(self, prompt: PromptBlocks) -> int:
        """Return how many tokens of the prompt's beginning the engine has."""
        found = self._found(prompt)
        return prompt.ends[found - 1] if found else 0

    def _found(self, prompt: PromptBlocks) -> int:
        """Return how many blocks of the prompt it has."""
        if self._latest:
            latest, self._latest = self._latest, []
            for other in latest:
                self._reserved.update(other.hashes[self._found(other) :])
        hashes: list[Any] = prompt.hashes  # not integers: compiled, those of 64 bits are converted at each use
        blocks, reserved = self._blocks, self._reserved
        low, high = 0, len(hashes)
        while low < high:  # bisection: see the module
            middle = (low + high) // 2
            if hashes[middle] in blocks or (reserved and hashes[middle] in reserved):
                low = middle + 1
            else:
                high = middle
        return low

    def reserve(self, prompt: PromptBlocks) -> int:
        """The engine gets this prompt; return the tokens that it has. Call `touch` or `withdraw` when that is over."""
        found = self._found(prompt)
        self._latest.append(prompt)
        return prompt.ends[found - 1] if found else 0

    def withdraw(self, prompt: PromptBlocks) -> None:
        """The engine does not compute this prompt: what only a reservation has brought goes."""
        for index, other in enumerate(self._latest):
            if other is prompt:
                del self._latest[index]
                return
        if self._reserved:
            self._reserved.difference_update(prompt.hashes)

    def touch(self, prompt: PromptBlocks, longest: int = MOST_TOKENS) -> None:
        """The engine has computed this prompt, at most so many tokens: its blocks are the last to be evicted."""
        hashes: list[Any] = prompt.hashes
        ends, blocks = prompt.ends, self._blocks
        count = len(hashes)
        self.withdraw(prompt)
        if prompt.tokens > longest:
            count = bisect_right(ends, longest)
        while count and hashes[count - 1] not in blocks:  # those that it has are the first ones: see the module
            count -= 1
            blocks[hashes[count]] = size = ends[count] - ends[count - 1] if count else ends[0]
            self.tokens += size
        while count:
            count -= 1
            blocks.move_to_end(hashes[count])
        if self.tokens > self.capacity:
            self._evict()

    def resize(self, tokens: int) -> None:
        """Set the capacity."""
        self.capacity = min(tokens, MOST_TOKENS)
        self._evict()

    def clear(self) -> None:
        """The engine has lost its blocks."""
        self._blocks.clear()
        self.tokens = 0

    def _evict(self) -> None:
        while self.tokens > self.capacity:
            _, size = self._blocks.popitem(last=False)
            self.tokens -= size
