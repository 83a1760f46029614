"""Tokens and text without a model: both are pure functions of bytes.

A token is four bytes of UTF-8. A generated text depends on the digest of the prompt tokens whose KV is in use and on
its length alone, so an engine that decodes over foreign KV generates another text.
"""

import hashlib
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

Tokens = Sequence[int]
Digest = str
"""Hex digest of the prompt tokens that a KV was computed from."""

MAX_TOKEN: Final = (1 << 63) - 1
_WIDTH: Final = 4
_PARTIAL: Final = 1 << 32
"""A last piece of k < 4 bytes has k times this added to its value."""
_PIECE: Final = 3
"""Hex digits in a generated token, after a blank."""


def tokenize(text: str) -> tuple[int, ...]:
    """Tokens of a text, four bytes each."""
    data = text.encode()
    whole, rest = divmod(len(data), _WIDTH)
    tokens = struct.unpack_from(f">{whole}I", data)
    if not rest:
        return tokens
    return (*tokens, rest * _PARTIAL + int.from_bytes(data[-rest:], "big"))


def detokenize(tokens: Tokens) -> str:
    """The text of tokens; the reverse of `tokenize`. An id that stands for no bytes becomes a replacement character."""
    pieces = []
    for token in tokens:
        length, value = divmod(token, _PARTIAL)
        width = length or _WIDTH
        pieces.append(value.to_bytes(_WIDTH, "big")[-width:] if width <= _WIDTH else b"\xff")
    return b"".join(pieces).decode(errors="replace")


def chat_tokens(messages: Sequence[Mapping[str, Any]], tools: object = None) -> tuple[int, ...]:
    """Tokens of a chat prompt: role, text and tool calls of each message in a fixed template, tools in front."""
    head = f"<|tools|>{tools}\n" if tools else ""
    body = "".join(f"<|{message.get('role')}|>{_text(message)}\n" for message in messages)
    return tokenize(f"{head}{body}<|assistant|>")


def _text(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    return _content(message.get("content")) + (str(calls) if calls else "")


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", part)) if isinstance(part, Mapping) else str(part) for part in content)
    return "" if content is None else str(content)


def digest_of(tokens: Tokens) -> Digest:
    """The digest that stands for the KV of these tokens."""
    return hashlib.blake2b(array("Q", tokens).tobytes(), digest_size=16).hexdigest()


def prefix_of(tokens: Tokens, block_size: int) -> tuple[tuple[int, int], ...]:
    """A hash of the prompt up to the end of each full block, and that end."""
    found, chain = [], 0
    for end in range(block_size, len(tokens) + 1, block_size):
        chain = hash((chain, *tokens[end - block_size : end]))
        found.append((chain, end))
    return tuple(found)


def pieces(digest: Digest, count: int) -> list[str]:
    """The first `count` generated tokens over this KV, as text; a longer list extends a shorter one."""
    digits = hashlib.shake_128(digest.encode()).hexdigest((count * _PIECE + 1) // 2)
    return [f" {digits[i : i + _PIECE]}" for i in range(0, count * _PIECE, _PIECE)]


def expected_text(prompt: Tokens, count: int) -> str:
    """The text that an engine generates in `count` tokens over the KV of this prompt."""
    return "".join(pieces(digest_of(prompt), count))
