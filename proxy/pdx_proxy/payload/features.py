"""The features of a prompt that the selection of engines needs. Only those that a setting needs are computed. Pure."""

from collections.abc import Generator
from typing import Any

from pdx_proxy.payload.prompt import beginning, is_short, is_short_in_slices
from pdx_proxy.payload.prompt_blocks import NO_BLOCKS, PromptBlocks, large_prompt_blocks, prompt_blocks


class PromptFeatures:
    """The computed features of a prompt. Immutable by convention."""

    __slots__ = ("blocks", "key", "short")

    def __init__(self, key: int | None = None, short: bool = False, blocks: PromptBlocks = NO_BLOCKS) -> None:
        self.key = key
        """Equal for prompts with the same beginning. None if no policy needs it, or without a prompt."""
        self.short = short
        """Whether the estimate of its tokens is at most the limit."""
        self.blocks = blocks
        """Its blocks; empty if no policy needs them."""


class PromptReader:
    """Computes the features that the policies in force need."""

    __slots__ = ("blocks", "key", "limit")

    def __init__(self, key: bool = False, limit: int = 0, blocks: bool = False) -> None:
        self.key = key
        """Whether to compute the key."""
        self.limit = limit
        """Tokens up to which a prompt is short; 0: do not estimate."""
        self.blocks = blocks
        """Whether to compute the blocks."""

    def features_of(self, members: dict[str, Any], text: int = 0) -> PromptFeatures:
        """Return the features of a body's prompt. `members` are JSON values of any type with the buffer protocol.

        `text`: the bytes of the member `prompt` if it is one text; otherwise 0.
        """
        key = beginning(members) if self.key else None
        short = self.limit > 0 and is_short(members, self.limit)
        return PromptFeatures(key, short, prompt_blocks(members, text) if self.blocks else NO_BLOCKS)

    def features_of_large(self, members: dict[str, Any]) -> Generator[int, None, PromptFeatures]:
        """Return the same for a large body, in slices.

        Yields the number of bytes that it has read since it yielded last.
        """
        key = beginning(members) if self.key else None
        short = self.limit > 0 and (yield from is_short_in_slices(members, self.limit))
        blocks = (yield from large_prompt_blocks(members)) if self.blocks else NO_BLOCKS
        return PromptFeatures(key, short, blocks)
