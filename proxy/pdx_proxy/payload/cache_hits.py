"""How many tokens of a prompt were found in a cache, in the usage of an answer. Pure.

Where KV is pushed or found in a pool, D counts all of it as cached (vLLM 0.32, v1/engine/output_processor.py: only for
`remote_prefill_cached_tokens`, which P must have answered before D gets its leg, D reports P's hits). Before 0.31, D
does so in pull orders, too. P's usage has the prompt's own hits. Usage is the last member of an answer, or nearly so,
and no text can look like it: in a JSON string, quotes are escaped.
"""

import re
from typing import Final

from pdx_proxy.payload.decisions import MESSAGES

USAGE: Final = b'"usage":{'
_CACHED: Final = re.compile(rb'("(?:prompt|input)_tokens_details":\{[^{}]*?"cached_tokens":) *([0-9]{1,12})')
_READ: Final = re.compile(
    rb'("usage":\{[^{}]*?"input_tokens":) *([0-9]{1,12})([^{}]*?"cache_read_input_tokens":) *([0-9]{1,12})'
)
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,8}")
UNKNOWN: Final = -1


def hits_of(path: str, body: bytes) -> int:
    """Return the hits in a P's whole answer; UNKNOWN if it reports none."""
    begin = max(0, body.rfind(USAGE))
    if path == MESSAGES:
        read = _READ.search(body, begin)
        return UNKNOWN if read is None else int(read[4])
    cached = _CACHED.search(body, begin)
    return UNKNOWN if cached is None else int(cached[2])


def with_hits(path: str, data: bytes, hits: int) -> bytes:
    """Return an answer, or events, in whose usage the prompt has so many hits."""
    begin = data.rfind(USAGE)
    if begin < 0:
        return data
    found = (_READ if path == MESSAGES else _CACHED).search(data, begin)
    if found is None:
        return data
    if path != MESSAGES:
        return b"%b%b%d%b" % (data[: found.start()], found[1], hits, data[found.end() :])
    computed, read = int(found[2]), int(found[4])  # a message counts what was read apart from its other input
    hits = min(hits, computed + read)
    usage = b"%b%d%b%d" % (found[1], computed + read - hits, found[3], hits)
    return data[: found.start()] + usage + data[found.end() :]


def in_chunk(path: str, data: bytes, hits: int) -> bytes:
    """Return bytes of a chunked stream, as an engine has sent them, in whose usage the prompt has so many hits.

    The size of the chunk is adapted, or spaces replace digits that are missing, if the chunk has begun before. (An
    event of JSON contains no CR.)
    """
    at = data.rfind(USAGE)
    begin, end = data.rfind(b"\r\n", 0, at) + 2, data.find(b"\r\n", at)
    line = data.rfind(b"\r\n", 0, max(0, begin - 2))
    head = line + 2 if line >= 0 else 0
    size = data[head : begin - 2] if begin >= 2 and end >= 0 else b""
    if _SIZE.fullmatch(size) and int(size, 16) == end - begin:
        changed = with_hits(path, data[begin:end], hits)
        return b"%b%x\r\n%b%b" % (data[:head], len(changed), changed, data[end:])
    return in_length(path, data, hits)


def in_length(path: str, data: bytes, hits: int) -> bytes:
    """As `with_hits`, in as many bytes. If there are not enough, they are as they were."""
    changed = with_hits(path, data, hits)
    missing = len(data) - len(changed)
    if missing < 0 or changed is data:
        return data
    close = changed.find(b"}", changed.rfind(USAGE))
    return changed[:close] + b" " * missing + changed[close:] if close >= 0 else data


def joined(data: bytes) -> bytes:
    """Return bytes of a chunked stream with the chunks that are complete as one. Bytes within a chunk stay as they are.

    A proxy in front of an engine may divide an event between chunks. The bytes may begin within a chunk.
    """
    first = 0 if _CHUNK.match(data) is not None else data.find(b"\r\n") + 2
    parts: list[bytes] = []
    begin = first
    while (head := _CHUNK.match(data, begin)) is not None:
        end = head.end() + int(head[1], 16)
        if not parts and end + 2 >= len(data):
            break
        if end == head.end() or data[end : end + 2] != b"\r\n":
            break
        parts.append(data[head.end() : end])
        begin = end + 2
    if len(parts) < 2:
        return data
    return b"%b%x\r\n%b\r\n%b" % (data[:first], sum(map(len, parts)), b"".join(parts), data[begin:])
