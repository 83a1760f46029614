"""The blocks of a prompt, by which a gateway finds out which engine has computed its beginning before. Pure.

In the first 32 KiB of a list of messages, a block ends at the first closing brace after 1 KiB or an eighth of what is
before it; that is mostly the end of a message. All other blocks have 4 KiB, more in long prompts. No JSON is parsed for
that: a brace within a text does as well. A block's hash covers everything before its end, so two prompts with the same
hash have the same beginning. Where blocks end depends only on the bytes before, so equal beginnings have equal blocks.
"""

from collections.abc import Generator
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from pdx_proxy.payload.prompt import stable_system

BLOCK_BYTES: Final = 4096
"""The most bytes of a block in a prompt that is not long: about 1,000 tokens."""
MAX_BLOCKS: Final = 256
"""The most blocks of one prompt. What follows them counts as not cached."""
TEXT_BYTES: Final = 4
"""Bytes of JSON per token of a text, about. Rates are learned in the same unit, so a constant error cancels."""
ID_BYTES: Final = 6
"""Bytes of JSON per token ID: four or five digits, a comma, and often a space."""
_LONG_BYTES: Final = 128 * 1024
"""From here on, blocks grow with the bytes before them, so that the number of blocks grows with their logarithm."""
_GROWTH: Final = 32
_SHORTEST_BYTES: Final = 256
"""The least block that ends with a part: 64 tokens, four blocks of vLLM."""
_MESSAGE_BYTES: Final = 1024
"""The least block that ends at a brace."""
_MESSAGE_GROWTH: Final = 8
"""Such a block has at least this part of the bytes before it, so that a long list of messages has few blocks."""
_HEAD_BYTES: Final = _MESSAGE_GROWTH * BLOCK_BYTES
"""Braces end no block behind this many bytes of their list, where they would come too late."""
_SLICE_BYTES: Final = 256 * 1024
"""What is read of a large body at a time."""
_KEYS: Final = ("cache_salt", "chat_template", "chat_template_kwargs", "documents", "mm_processor_kwargs")
"""Members besides the model's name that change the whole prompt or, the salt, keep requests apart in vLLM's cache."""
_PARTS: Final = ("tools", "system", "instructions", "messages", "prompt", "input")
"""Members that make the prompt, in the order of most chat templates. The last three exclude each other."""
_SPECIAL: Final = frozenset((*_KEYS, *_PARTS)) - {"prompt"}
"""Without any of these, only the model's name and the prompt count."""
_LIST: Final = 0x5B
_ZERO: Final = 0x30
_NINE: Final = 0x39
_SPACES: Final = (0x20, 0x09, 0x0A, 0x0D)
_HASH: Final[Any] = xxh3_64_intdigest
"""A name of this module: compiled, another one is looked up at each use. Its results are no integers: see `_Chain`."""


class PromptBlocks:
    """The blocks of one prompt. Immutable by convention."""

    __slots__ = ("ends", "hashes", "tokens")

    def __init__(self, hashes: list[int], ends: list[int], tokens: int) -> None:
        self.hashes = hashes
        """For each block, a hash of the prompt up to its end."""
        self.ends = ends
        """For each block, the tokens of the prompt up to its end."""
        self.tokens = tokens
        """The tokens of the whole prompt. All are estimates."""


NO_BLOCKS: Final = PromptBlocks([], [], 0)
"""Of a request without a prompt."""


class _Chain:
    """Computes the blocks of a prompt part by part. Positions count the bytes of all parts."""

    __slots__ = ("_begin", "_block", "_hash", "_hashed", "_last", "_part", "_token_bytes", "ends", "hashes", "tokens")

    def __init__(self, key: Any) -> None:
        self._hash = key  # not an integer: compiled, one of 64 bits is converted at each use
        self._hashed = 0
        """Up to where the hash covers the prompt."""
        self._block = BLOCK_BYTES
        """Where the next block ends at the latest."""
        self._last = 0
        """Where the last block ends."""
        self._part = memoryview(b"")
        self._begin = 0
        """Where the present part begins."""
        self._token_bytes = TEXT_BYTES
        self.tokens = 0
        """Tokens of the parts before the present one."""
        self.hashes: list[Any] = []
        self.ends: list[int] = []

    def start(self, part: memoryview, token_bytes: int) -> None:
        """The next bytes are those of `part`, with so many bytes for each token."""
        end = self._begin + len(self._part)
        if self._hashed < end:
            self._add(end)
        self.count()
        self._begin, self._part, self._token_bytes = end, part, token_bytes

    def count(self) -> None:
        """Count the tokens of the present part."""
        self.tokens += len(self._part) // self._token_bytes

    def read(self, end: int) -> None:
        """Read up to the byte `end` of the present part."""
        end += self._begin
        while self._block < end:
            self._end_block(self._block)

    def end(self, end: int) -> None:
        """Read up to the end of the present part, and end a block there unless that would be too short."""
        self.read(end)
        end += self._begin
        size = end - self._last
        if size >= _SHORTEST_BYTES and size >= end // _GROWTH:
            self._end_block(end)

    def read_messages(self) -> None:
        """Read the beginning of a list, and end blocks at braces."""
        head, begin, end = bytes(self._part[:_HEAD_BYTES]), self._begin, 0
        while True:
            shortest = max(_MESSAGE_BYTES, self._last // _MESSAGE_GROWTH)
            end = head.find(b"}", max(end, self._last + shortest - begin - 1)) + 1
            if not end:
                return
            self.read(end)
            if end + begin - self._last >= shortest:
                self._end_block(end + begin)

    def _end_block(self, end: int) -> None:
        self._add(end)
        if len(self.hashes) < MAX_BLOCKS:
            self.hashes.append(self._hash)
            self.ends.append(self.tokens + (end - self._begin) // self._token_bytes)
        self._last = end
        self._block = end + (BLOCK_BYTES if end < _LONG_BYTES else end // _GROWTH)

    def _add(self, end: int) -> None:
        begin = self._begin
        self._hash = _HASH(self._part[self._hashed - begin : end - begin], self._hash)
        self._hashed = end


def prompt_blocks(members: dict[str, Any], text: int = 0) -> PromptBlocks:
    """Return the blocks of a body's prompt. `members` are JSON values by name, of any type with the buffer protocol.

    `text`: the bytes of the member `prompt` if it is one text; otherwise 0.
    """
    if 0 < text <= _LONG_BYTES and _SPECIAL.isdisjoint(members):
        model = members.get("model")
        return _text_blocks(members["prompt"], text, 0 if model is None else _HASH(model))
    chain = _Chain(_key(members))
    for name in _PARTS:
        value = members.get(name)
        if value is not None and name == "system":
            value = stable_system(value)
        if value is not None:
            size, part = len(value), memoryview(value)
            token_bytes = _token_bytes(part)
            chain.start(part, token_bytes)
            if part[0] == _LIST and token_bytes == TEXT_BYTES:
                chain.read_messages()
                chain.read(size)  # a longer conversation does not have the closing bracket here
            else:
                chain.end(size)
    return _blocks(chain)


def large_prompt_blocks(members: dict[str, Any]) -> Generator[int, None, PromptBlocks]:
    """Return the same for a large body, in slices.

    Yields the number of bytes that it has read since it yielded last.
    """
    chain = _Chain(_key(members))
    for name in _PARTS:
        value = members.get(name)
        if value is not None and name == "system":
            value = stable_system(value)
        if value is None:
            continue
        part = memoryview(value)
        token_bytes, size, end = _token_bytes(part), len(part), 0
        chain.start(part, token_bytes)
        messages = part[0] == _LIST and token_bytes == TEXT_BYTES
        if messages:
            chain.read_messages()
        while end < size:
            before, end = end, min(size, end + _SLICE_BYTES)
            chain.read(end)
            yield end - before
        if not messages:
            chain.end(size)
    return _blocks(chain)


def _text_blocks(text: Any, size: int, key: Any) -> PromptBlocks:
    """The blocks of a prompt that is one text: the same as a chain's, in a third of the instructions."""
    hashes: list[Any] = []
    ends: list[int] = []
    begin, end = 0, BLOCK_BYTES
    if end < size:
        text = memoryview(text)
        while end < size:
            key = _HASH(text[begin:end], key)
            hashes.append(key)
            ends.append(end // TEXT_BYTES)
            begin, end = end, end + BLOCK_BYTES
    rest = size - begin
    if rest >= _SHORTEST_BYTES and rest >= size // _GROWTH:
        hashes.append(_HASH(text[begin:] if begin else text, key))
        ends.append(size // TEXT_BYTES)
    return PromptBlocks(hashes, ends, size // TEXT_BYTES)


def _blocks(chain: _Chain) -> PromptBlocks:
    chain.count()
    return PromptBlocks(chain.hashes, chain.ends, chain.tokens)


def _key(members: dict[str, Any]) -> Any:
    """A hash of what separates prompts with equal texts. An adapter (LoRA) is requested by the model's name."""
    model = members.get("model")
    key: Any = 0 if model is None else _HASH(model)
    for name in _KEYS:
        value = members.get(name)
        if value is not None:
            key = _HASH(value, _HASH(name.encode(), key))
    return key


def _token_bytes(part: memoryview) -> int:
    """Bytes per token of a JSON value: less for texts than for token IDs, also in a list of lists."""
    if part[0] != _LIST:
        return TEXT_BYTES
    for index in range(1, min(len(part), 8)):
        byte = part[index]
        if byte != _LIST and byte not in _SPACES:
            return ID_BYTES if _ZERO <= byte <= _NINE else TEXT_BYTES
    return TEXT_BYTES
