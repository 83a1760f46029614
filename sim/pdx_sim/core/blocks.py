"""The pool of KV blocks."""

Prefix = tuple[tuple[int, int], ...]
"""The parts of a prompt that other prompts may share: a hash of all tokens so far, and their number."""


class BlockPool:
    """A number of blocks and their owners. Invariant: free and held blocks add up to the size."""

    __slots__ = ("_held", "free_blocks", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_blocks = size
        self._held: dict[str, int] = {}

    @property
    def held(self) -> int:
        """Blocks in use."""
        return self.size - self.free_blocks

    @property
    def owners(self) -> dict[str, int]:
        """Blocks held by each owner."""
        return dict(self._held)

    def of(self, owner: str) -> int:
        """Blocks held by one owner."""
        return self._held.get(owner, 0)

    def take(self, owner: str, blocks: int) -> bool:
        """Give an owner this many more blocks; False, and none, if too few are free."""
        if blocks > self.free_blocks:
            return False
        self.free_blocks -= blocks
        self._held[owner] = self._held.get(owner, 0) + blocks
        return True

    def take_prompt(self, owner: str, blocks: int, prefix: Prefix) -> int | None:
        """Give an owner the blocks of a prompt; None, and no block, if too few are free.

        Return the number of tokens whose KV they contain already: 0 without a prefix cache.
        """
        return 0 if self.take(owner, blocks) else None

    def fill(self, owner: str, tokens: int) -> None:
        """Note that an owner's blocks contain the KV of this many prompt tokens: of interest to a prefix cache only."""

    def free(self, owner: str) -> int:
        """Take all blocks of an owner back; return their number."""
        blocks = self._held.pop(owner, 0)
        self.free_blocks += blocks
        return blocks


def blocks_for(tokens: int, block_size: int) -> int:
    """Number of blocks that hold this many tokens."""
    return -(-tokens // block_size)
