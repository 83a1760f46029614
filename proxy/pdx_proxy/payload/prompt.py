"""Features of a prompt for the selection of engines: a key of its beginning, and an estimate of its tokens.

Both read the JSON as received. Only features that a setting needs are computed.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import orjson

KEY_BYTES: Final = 1024
"""How many bytes of a prompt make its key: about 256 tokens, 16 blocks of a KV cache.

Requests that share less gain little from the same engine. Requests that share more have the same key.
"""
_PROMPTS: Final = ("messages", "prompt", "input")
"""Members that contain the prompt; a body has one of them."""
_COUNTED: Final = (*_PROMPTS, "system", "tools")
"""Members that count as part of the prompt."""
_MESSAGES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
_NOT_ASCII: Final = bytes(range(0x80, 0x100))
_NO_LEAD: Final = bytes(range(0xC0))
_LEADS_OF_TWO: Final = bytes(range(0xC0, 0xE0))
"""First bytes of two-byte characters: Latin with accents, Greek, Cyrillic, Arabic."""
_SHORTEST_TOKEN: Final = 0.5
_LONGEST_TOKEN: Final = 12
"""Bytes of JSON per token. Outside these bounds the size alone decides, without an estimate."""


class _Message(msgspec.Struct):
    role: str = ""


_MESSAGE: Final = msgspec.json.Decoder(_Message)


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """The computed features of a prompt."""

    key: int | None = None
    """Equal for prompts with the same beginning. None if no policy needs it, or without a prompt."""
    short: bool = False
    """Whether the estimate of its tokens is at most the limit."""


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Computes the features that the policies in force need."""

    key: bool
    """Whether to compute the key."""
    limit: int
    """Tokens up to which a prompt is short; 0: do not estimate."""

    def features_of(self, members: Mapping[str, bytes]) -> PromptFeatures:
        """The features of a body's prompt. `members` are JSON values by name, of any type with the buffer protocol."""
        return PromptFeatures(
            beginning(members) if self.key else None, self.limit > 0 and is_short(members, self.limit)
        )


def beginning(members: Mapping[str, bytes]) -> int | None:
    """A hash of the first `KEY_BYTES` of a prompt; None without a prompt.

    In a chat the key ends with the first message of the user, so that a conversation keeps its key.
    """
    for name in _PROMPTS:
        if (prompt := members.get(name)) is not None:
            return _of_chat(prompt) if name == "messages" else zlib.crc32(memoryview(prompt)[:KEY_BYTES])
    return None


def _of_chat(messages: bytes) -> int:
    key, remaining = 0, KEY_BYTES
    try:
        for message in _MESSAGES.decode(messages):
            key = zlib.crc32(memoryview(message)[:remaining], key)
            remaining -= len(message)
            if remaining <= 0 or _MESSAGE.decode(message).role == "user":
                break
    except msgspec.DecodeError:  # an engine refuses it
        return zlib.crc32(memoryview(messages)[:KEY_BYTES])
    return key


def is_short(members: Mapping[str, bytes], limit: int) -> bool:
    """Whether the estimate of a prompt's tokens is at most `limit`."""
    parts = [members[name] for name in _COUNTED if name in members]
    size = sum(map(len, parts))
    if size > limit * _LONGEST_TOKEN:
        return False
    return size <= limit * _SHORTEST_TOKEN or sum(estimate(bytes(part)) for part in parts) <= limit


def estimate(value: bytes) -> float:
    """An estimate of the tokens in a JSON value: a text, token IDs, or any value that contains texts.

    The weights fit the tokenizers in docs/gateway.md, "Choosing engines", which lists the errors.
    """
    if value[:1] == b"[" and value.lstrip(b"[ \t\r\n")[:1].isdigit():
        return value.count(b",") + 1.0
    if b"\\u" in value:
        value = _unescaped(value)
    signs = len(value.translate(None, _LETTERS))
    tokens = 0.22 * (len(value) - signs)
    if not value.isascii():
        leads = value.translate(None, _NO_LEAD)
        wide = len(leads.translate(None, _LEADS_OF_TWO))
        signs = len(value.translate(None, _NOT_ASCII)) - (len(value) - signs)
        tokens += 0.35 * (len(leads) - wide) + wide
    return tokens + 0.5 * signs


def _unescaped(value: bytes) -> bytes:
    try:
        return orjson.dumps(orjson.loads(value))
    except orjson.JSONDecodeError:  # half a surrogate pair
        return value
