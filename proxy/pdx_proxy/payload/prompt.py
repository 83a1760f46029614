"""Features of a prompt for the selection of engines: a key of its beginning, and an estimate of its tokens.

Both read the JSON as received.
"""

import re
import zlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

import msgspec
import orjson

KEY_BYTES: Final = 1024
"""How many bytes of a prompt make its key: about 256 tokens, 16 blocks of a KV cache.

Requests that share less gain little from the same engine. Requests that share more have the same key.
"""
_PROMPTS: Final = ("messages", "prompt", "input")
"""Members that contain the prompt; a body has one of them."""
_SYSTEMS: Final = {"messages": "system", "input": "instructions"}
"""The member that stands before the prompt, by the prompt's."""
_COUNTED: Final = (*_PROMPTS, *_SYSTEMS.values(), "tools")
"""Members that count as part of the prompt."""
_MESSAGES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_LIST: Final = ord("[")
_BILLING: Final = b"x-anthropic-billing-header"
_BILLING_BYTES: Final = 512
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
_NOT_ASCII: Final = bytes(range(0x80, 0x100))
_NO_LEAD: Final = bytes(range(0xC0))
_LEADS_OF_TWO: Final = bytes(range(0xC0, 0xE0))
"""First bytes of two-byte characters: Latin with accents, Greek, Cyrillic, Arabic."""
_HEAD_BYTES: Final = 4 * KEY_BYTES
"""How much of a long chat is read for its key."""
_CHAT_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{},]', re.DOTALL)
_SLICE_BYTES: Final = 128 * 1024
"""How much of a large prompt is estimated between two yields."""
_LONGEST_ESCAPE: Final = 6
_AS_TEXT: Final = bytes.maketrans(b'"' + bytes(range(0x20)), b" " * 0x21)
"""Makes a piece of JSON the inside of a string."""
_SHORTEST_TOKEN: Final = 0.5
_LONGEST_TOKEN: Final = 12
"""Bytes of JSON per token. Outside these bounds the size alone decides, without an estimate."""


class _Message(msgspec.Struct):
    role: str = ""


_MESSAGE: Final = msgspec.json.Decoder(_Message)


def beginning(members: Mapping[str, bytes]) -> int | None:
    """A hash of the model's name and the first `KEY_BYTES` of a prompt; None without a prompt.

    An adapter (LoRA) is requested by the model's name, and has KV of its own. In a chat the key ends with the first
    message of the user, so that a conversation keeps its key. Anthropic's `system` and `instructions` of a response
    stand before the messages.
    """
    for name in _PROMPTS:
        if (prompt := members.get(name)) is not None:
            key, remaining = zlib.crc32(members.get("model", b"")), KEY_BYTES
            system = members.get(_SYSTEMS[name]) if name in _SYSTEMS else None
            if system is not None:
                begin = memoryview(stable_system(system))[:KEY_BYTES]
                key, remaining = zlib.crc32(begin, key), KEY_BYTES - len(begin)
            if name == "prompt" or memoryview(prompt)[0] != _LIST:
                return zlib.crc32(memoryview(prompt)[:remaining], key)
            return _of_chat(prompt, key, remaining) if remaining else key
    return None


def stable_system(system: Any) -> Any:
    """The value of `system` without a first text that differs with every request and that vLLM removes.

    Claude Code begins its system prompt with such a text (vllm/entrypoints/anthropic/serving.py,
    `_convert_system_message`).
    """
    view = memoryview(system)
    head = bytes(view[:_BILLING_BYTES])
    begin = head.find(_BILLING)
    return view[head.find(b"}", begin) + 1 :] if begin >= 0 and head[0] == _LIST else system


def _of_chat(messages: bytes, key: int, remaining: int) -> int:
    first, most = key, remaining
    long = len(messages) > _SLICE_BYTES
    try:
        for message in _first_messages(messages) if long else _MESSAGES.decode(messages):
            key = zlib.crc32(memoryview(message)[:remaining], key)
            remaining -= len(message)
            if remaining <= 0 or _MESSAGE.decode(message).role == "user":
                break
    except msgspec.DecodeError:  # an engine refuses it
        return zlib.crc32(memoryview(messages)[:most], first)
    return key


def _first_messages(messages: bytes) -> Iterator[bytes]:
    """The first messages of a long chat; the last of them may be incomplete."""
    head = bytes(memoryview(messages)[:_HEAD_BYTES])
    depth, begin = 0, 0
    for found in _CHAT_TOKENS.finditer(head):
        token = found[0]
        if token in b"[{":
            depth += 1
            begin = found.end() if depth == 1 else begin
        elif token in b"]}":
            depth -= 1
        elif token == b"," and depth == 1:
            yield head[begin : found.start()].strip()
            begin = found.end()
    yield head[begin:].strip()


def is_short_in_slices(members: Mapping[str, bytes], limit: int) -> Generator[int, None, bool]:
    """The same as `is_short` for a large body. Yields the number of bytes that it has read since it yielded last."""
    parts = [memoryview(members[name]) for name in _COUNTED if name in members]
    size = sum(map(len, parts))
    if size > limit * _LONGEST_TOKEN or size <= limit * _SHORTEST_TOKEN:
        return size <= limit * _SHORTEST_TOKEN
    tokens = 0.0
    for part in parts:
        ids, at = _are_ids(bytes(part[:_HEAD_BYTES])), 0
        tokens += ids
        while at < len(part) and tokens <= limit:
            piece = bytes(part[at : at + _SLICE_BYTES])
            escape = piece.rfind(b"\\", len(piece) - _LONGEST_ESCAPE)
            piece = piece[:escape] if escape > 0 else piece
            tokens += piece.count(b",") if ids else _estimate_text(_piece_unescaped(piece))
            at += len(piece)
            yield len(piece)
    return tokens <= limit


def is_short(members: Mapping[str, bytes], limit: int) -> bool:
    """Whether the estimate of a prompt's tokens is at most `limit`."""
    parts = [members[name] for name in _COUNTED if name in members]
    size = sum(map(len, parts))
    if size > limit * _LONGEST_TOKEN:
        return False
    return size <= limit * _SHORTEST_TOKEN or sum(estimate(bytes(part)) for part in parts) <= limit


def estimate(value: bytes) -> float:
    """An estimate of the tokens in a JSON value: a text, token IDs, or any value that contains texts.

    The weights fit the tokenizers in docs/gateway/choosing.md, "Choosing engines", which lists the errors.
    """
    if _are_ids(value):
        return value.count(b",") + 1.0
    return _estimate_text(_unescaped(value) if b"\\u" in value else value)


def _are_ids(value: bytes) -> bool:
    return value[:1] == b"[" and value.lstrip(b"[ \t\r\n")[:1].isdigit()


def _estimate_text(value: bytes) -> float:
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


def _piece_unescaped(piece: bytes) -> bytes:
    """The same for a piece of JSON that begins and ends anywhere."""
    if b"\\u" not in piece:
        return piece
    text = piece.replace(b"\\\\", b"  ").replace(b'\\"', b"  ").translate(_AS_TEXT)
    try:
        return orjson.dumps(orjson.loads(b'"%b"' % text))
    except orjson.JSONDecodeError:
        return piece
