"""The pool of KV blocks, by owner."""


class BlockPool:
    """A number of blocks and who holds them. Invariant: what is free and what is held add up to the size."""

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
        """Give an owner that many more blocks, all or none."""
        if blocks > self.free_blocks:
            return False
        self.free_blocks -= blocks
        self._held[owner] = self._held.get(owner, 0) + blocks
        return True

    def free(self, owner: str) -> int:
        """Take all blocks of an owner back; says how many there were."""
        blocks = self._held.pop(owner, 0)
        self.free_blocks += blocks
        return blocks


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold that many tokens."""
    return -(-tokens // block_size)
