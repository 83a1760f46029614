"""What a choice may ask of a prompt: a key for its beginning, and roughly how many tokens it is.

Both read the JSON as it came. Only what a setting asks for is computed.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import orjson

KEY_BYTES: Final = 1024
"""How much of a prompt is its key: about 256 tokens, 16 blocks of a KV cache.

Requests that share less gain little from the same engine; those that share more are together.
"""
_PROMPTS: Final = ("messages", "prompt", "input")
"""Members that hold a prompt; a body has one of them."""
_COUNTED: Final = (*_PROMPTS, "system", "tools")
"""Members that a prompt is made of."""
_MESSAGES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
_NOT_ASCII: Final = bytes(range(0x80, 0x100))
_NO_LEAD: Final = bytes(range(0xC0))
_LEADS_OF_TWO: Final = bytes(range(0xC0, 0xE0))
"""First bytes of characters of two bytes: Latin with accents, Greek, Cyrillic, Arabic."""
_SHORTEST_TOKEN: Final = 0.5
_LONGEST_TOKEN: Final = 12
"""Bytes of JSON for each token: what is surely below or above a limit is not looked at."""


class _Message(msgspec.Struct):
    role: str = ""


_MESSAGE: Final = msgspec.json.Decoder(_Message)


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """What was asked of a prompt."""

    key: int | None = None
    """Equal for prompts with the same beginning. None when nobody asked, or there is no prompt."""
    short: bool = False
    """Whether it has, as estimated, no more tokens than the limit."""


@dataclass(frozen=True, slots=True)
class PromptReader:
    """What is asked of every prompt."""

    key: bool
    limit: int
    """Tokens up to which a prompt is short; 0 when nobody asks."""

    def features_of(self, members: Mapping[str, bytes]) -> PromptFeatures:
        """The traits of a body's prompt; `members` are JSON values by name, of any type that is a buffer."""
        return PromptFeatures(
            beginning(members) if self.key else None, self.limit > 0 and is_short(members, self.limit)
        )


def beginning(members: Mapping[str, bytes]) -> int | None:
    """A hash of the first `KEY_BYTES` of a prompt; None without one.

    Of a chat it ends with the first user's message, so that a conversation keeps its key from its first turn on.
    """
    for name in _PROMPTS:
        if (prompt := members.get(name)) is not None:
            return _of_chat(prompt) if name == "messages" else zlib.crc32(memoryview(prompt)[:KEY_BYTES])
    return None


def _of_chat(messages: bytes) -> int:
    key, left = 0, KEY_BYTES
    try:
        for message in _MESSAGES.decode(messages):
            key = zlib.crc32(memoryview(message)[:left], key)
            left -= len(message)
            if left <= 0 or _MESSAGE.decode(message).role == "user":
                break
    except msgspec.DecodeError:  # an engine will refuse it
        return zlib.crc32(memoryview(messages)[:KEY_BYTES])
    return key


def is_short(members: Mapping[str, bytes], limit: int) -> bool:
    """Whether a prompt has, as estimated, at most `limit` tokens."""
    parts = [members[name] for name in _COUNTED if name in members]
    size = sum(map(len, parts))
    if size > limit * _LONGEST_TOKEN:
        return False
    return size <= limit * _SHORTEST_TOKEN or sum(estimate(bytes(part)) for part in parts) <= limit


def estimate(value: bytes) -> float:
    """Roughly how many tokens a JSON value is: a text, token ids, or anything that holds texts.

    The weights are those of the tokenizers in docs/gateway.md, "Choosing engines", with the errors they leave.
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
