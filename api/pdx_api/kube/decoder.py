"""Decodes the JSON of the API server, whatever tenants have written into an object.

Tenants choose how deeply the unknown fields of an object are nested. Python's decoder raises RecursionError at about
1,000 levels, and a list contains the objects of all tenants. So what is nested too deeply is replaced by null. The
object that contained it is still too deep to be used: see `object_shape`.
"""

import json
import re
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final

LEVELS: Final = 200
"""Levels of a document that are kept. It is far more than `object_shape.LEVELS`, so a cut object is still too deep."""
_DIGITS: Final = 400
"""Digits of a number that are kept: Python refuses to read more than 4,300."""
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_LONG_NUMBER: Final = re.compile(rb'("(?:[^"\\]|\\.)*+")|(\d{%d})\d+' % _DIGITS, re.DOTALL)
_DIGIT_RUN: Final = re.compile(rb"\d{%d}" % _DIGITS)


def decode(data: bytes) -> Any:
    """Decode a document. Raises ValueError if it is no JSON."""
    try:
        return json.loads(data)
    except (RecursionError, ValueError):
        return json.loads(readable(data))


def readable(data: bytes) -> bytes:
    """Return a document that every JSON decoder of Python can read, if it is JSON at all."""
    if not data.isascii():
        data = data.decode(errors="replace").encode()
    if _DIGIT_RUN.search(data):
        data = _LONG_NUMBER.sub(_shortened, data)
    # There are at least as many brackets as levels.
    return data if data.count(b"[") + data.count(b"{") <= LEVELS else b"".join(_shallow_parts(data))


def _shortened(number: re.Match[bytes]) -> bytes:
    return number[1] or number[2]


def _shallow_parts(data: bytes) -> list[bytes]:
    """The parts of a document outside what is nested too deeply."""
    parts: list[bytes] = []
    level = kept = 0
    for token in _TOKENS.finditer(data):
        match token[0]:
            case b"[" | b"{":
                level += 1
                if level == LEVELS + 1:
                    parts += (data[kept : token.start()], b"null")
            case b"]" | b"}":
                level -= 1
                if level == LEVELS:
                    kept = token.end()
    return [*parts, data[kept:]] if level <= LEVELS else parts


async def lines_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Split a stream into complete lines, of any length. What follows the last end of a line is dropped."""
    beginning: list[bytes] = []
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join((*beginning, end))
            beginning.clear()
        if rest:
            beginning.append(rest)
