"""Which blocks of prompts an engine has in its prefix cache, from the prompts that were sent to it. Pure.

Blocks are evicted like vLLM's (v1/core/block_pool.py): the least recently used prompt first, of a prompt the last block
first. So a block stays at least as long as those that follow it, and the blocks that an engine has of a prompt are
always the first ones.
"""

from collections import OrderedDict
from typing import Final

from pdx_proxy.payload.prompt_blocks import PromptBlocks

UNREPORTED_TOKENS: Final = 262_144
"""Tokens in the cache of an engine that does not report its size."""
MOST_TOKENS: Final = 8_388_608
"""The most tokens that are tracked of one engine. It bounds the memory: docs/gateway.md, "Expected wait"."""


class PrefixCache:
    """The blocks of one engine."""

    __slots__ = ("_blocks", "capacity", "tokens")

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, int] = OrderedDict()
        """Tokens of each block by hash, the next to be evicted first."""
        self.tokens = 0
        """Their sum."""
        self.capacity = UNREPORTED_TOKENS
        """The most tokens."""

    def __len__(self) -> int:
        return len(self._blocks)

    def cached(self, prompt: PromptBlocks) -> int:
        """Return how many tokens of the prompt's beginning the engine has."""
        hashes, blocks = prompt.hashes, self._blocks
        low, high = 0, len(hashes)
        while low < high:  # bisection: see the module
            middle = (low + high) // 2
            if hashes[middle] in blocks:
                low = middle + 1
            else:
                high = middle
        return prompt.ends[low - 1] if low else 0

    def touch(self, prompt: PromptBlocks) -> int:
        """The engine computes this prompt: its blocks are the last to be evicted. Return the tokens that it had."""
        hashes, ends, blocks = prompt.hashes, prompt.ends, self._blocks
        cached = 0
        for index in range(len(hashes) - 1, -1, -1):
            block = hashes[index]
            if block in blocks:
                blocks.move_to_end(block)
                if not cached:
                    cached = ends[index]
            else:
                size = ends[index] - ends[index - 1] if index else ends[0]
                blocks[block] = size
                self.tokens += size
        if self.tokens > self.capacity:
            self._evict()
        return cached

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
