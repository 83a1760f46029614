"""A pool of KV blocks that keeps the KV of prompts for later prompts with the same beginning.

As in vLLM 0.32 (v1/core/block_pool.py `free_blocks`, v1/core/kv_cache_manager.py `get_computed_blocks`): only full
blocks are found, and at least the last token of a prompt is computed. Freed blocks with KV of a prompt stay until they
are evicted in the order in which they were freed, the tail of a prompt before its beginning. Blocks in use stay.

Blocks are kept by part: a part is what `Prefix` names, one block or several. Blocks that two sequences computed at the
same time are not merged.
"""

from collections import OrderedDict

from pdx_sim.core.blocks import BlockPool, Prefix


class _Part:
    """Blocks that contain KV of a prompt."""

    __slots__ = ("blocks", "users")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.users = 0
        """Owners; without one it may be evicted."""


class _Prompt:
    """The prompt of one owner."""

    __slots__ = ("filled", "own", "prefix", "shared")

    def __init__(self, prefix: Prefix, shared: list[int]) -> None:
        self.prefix = prefix
        self.shared = shared
        """Hashes of the parts that it uses, from the beginning."""
        self.own = 0
        """Blocks that contain no part: they are free when the owner has ended."""
        self.filled = len(shared)
        """Parts of the prefix whose KV is there."""


class PrefixCache(BlockPool):
    """See above. Invariant: blocks in use and blocks with KV that nobody uses fit into the pool.

    `free_blocks` counts the blocks that nobody uses, with KV or without, as vLLM's kv_cache_usage_perc does.
    """

    __slots__ = ("_block_size", "_evictable", "_idle", "_parts", "_prompts", "evicted", "hits", "queries")

    def __init__(self, size: int, block_size: int) -> None:
        super().__init__(size)
        self._block_size = block_size
        self._parts: dict[int, _Part] = {}
        self._prompts: dict[str, _Prompt] = {}
        self._evictable: OrderedDict[int, int] = OrderedDict()
        """Hash -> blocks of the parts that nobody uses; the next to evict comes first."""
        self._idle = 0
        """Sum of these blocks."""
        self.queries = 0
        """Prompt tokens that were looked up."""
        self.hits = 0
        """Prompt tokens that were found."""
        self.evicted = 0
        """Blocks."""

    def cached(self, prefix: Prefix) -> int:
        """Return the number of tokens at the beginning of a prompt whose KV is here."""
        found = self._find(prefix)
        return prefix[len(found) - 1][1] if found else 0

    def clear(self) -> None:
        """Evict all that nobody uses (vLLM's /reset_prefix_cache)."""
        for key in self._evictable:
            del self._parts[key]
        self._evictable.clear()
        self._idle = 0

    def take(self, owner: str, blocks: int) -> bool:
        """Give an owner this many more blocks; False, and none, if too few are free or evictable."""
        if not super().take(owner, blocks):
            return False
        if (prompt := self._prompts.get(owner)) is not None:
            prompt.own += blocks
        if self._idle > self.free_blocks:
            self._evict()
        return True

    def take_prompt(self, owner: str, blocks: int, prefix: Prefix) -> int | None:
        """See `BlockPool`. The parts that are found are used in common; the rest gets blocks of its own."""
        found = self._find(prefix)
        shared = sum(self._parts[key].blocks for key in found)
        idle = sum(self._evictable.get(key, 0) for key in found)
        own = max(0, blocks - shared)
        if own + idle > self.free_blocks:
            return None
        for key in found:
            self._parts[key].users += 1
            self._evictable.pop(key, None)
        self._idle -= idle
        self.free_blocks -= idle
        self._prompts[owner] = _Prompt(prefix, found)
        self._held[owner] = shared
        self.take(owner, own)
        tokens = prefix[len(found) - 1][1] if found else 0
        self.queries += prefix[-1][1] if prefix else 0
        self.hits += tokens
        return tokens

    def fill(self, owner: str, tokens: int) -> None:
        """Keep the parts whose KV is complete with so many tokens of the prompt."""
        prompt = self._prompts.get(owner)
        if prompt is None:
            return
        while prompt.filled < len(prompt.prefix) and prompt.prefix[prompt.filled][1] <= tokens:
            key, end = prompt.prefix[prompt.filled]
            begin = prompt.prefix[prompt.filled - 1][1] if prompt.filled else 0
            prompt.filled += 1
            blocks = end // self._block_size - begin // self._block_size
            if key not in self._parts and 0 < blocks <= prompt.own:
                part = self._parts[key] = _Part(blocks)
                part.users = 1
                prompt.own -= blocks
                prompt.shared.append(key)

    def free(self, owner: str) -> int:
        """Take all blocks of an owner back; return their number. Parts that nobody else uses become evictable."""
        prompt = self._prompts.pop(owner, None)
        if prompt is None:
            return super().free(owner)
        blocks = self._held.pop(owner, 0)
        self.free_blocks += prompt.own
        for key in reversed(prompt.shared):
            part = self._parts[key]
            part.users -= 1
            if not part.users:
                self._evictable[key] = part.blocks
                self._idle += part.blocks
                self.free_blocks += part.blocks
        return blocks

    def _find(self, prefix: Prefix) -> list[int]:
        found = []
        for key, _ in prefix:
            if key not in self._parts:
                break
            found.append(key)
        return found

    def _evict(self) -> None:
        while self._idle > self.free_blocks:
            key, blocks = self._evictable.popitem(last=False)
            del self._parts[key]
            self._idle -= blocks
            self.evicted += blocks
