"""Relays an answer whose usage must have the cache hits of its prompt, and not the KV that D has received."""

from typing import Final

from pdx_proxy.handoff.request import CacheHits
from pdx_proxy.http.upstream.connection import Sink
from pdx_proxy.payload.cache_hits import UNKNOWN, USAGE, in_chunk, in_length, joined, with_hits

_MOST_BYTES: Final = 64 * 1024
"""How much of a usage that is not complete is held back."""
_ENDS: Final = (b"\n\r\n", b"\n\n")
"""Ends of a chunk, or of bytes without chunks, with whole events."""


class UsageSink:
    """Passes an answer on, with the hits of its prompt as P has reported them by then."""

    __slots__ = ("_chunked", "_fixed", "_held", "_hits", "_path", "_sink")

    def __init__(self, sink: Sink, hits: CacheHits, path: str, *, chunked: bool, fixed: bool) -> None:
        """`chunked`: the bytes have the framing of chunks. `fixed`: the client knows their number."""
        self._sink = sink
        self._hits = hits
        self._path = path
        self._chunked = chunked
        self._fixed = fixed
        self._held = b""

    def write(self, data: bytes) -> None:
        """Pass on bytes. Those with a part of a usage are held back until the rest of it is here."""
        changed = self.change(data)
        if changed:
            self._sink.write(changed)

    def change(self, data: bytes) -> bytes:
        """Return what may be passed on now."""
        if self._held:
            data, self._held = self._held + data, b""
        at, hits = data.rfind(USAGE), self._hits.tokens
        if hits == UNKNOWN:
            return data
        if self._chunked and (at < 0 or not self._is_whole(data, at)):
            data = joined(data)
            at = data.rfind(USAGE)
        if at < 0 and (data.endswith(_ENDS) or not _begins_usage(data)):
            return data
        if at < 0 or not self._is_whole(data, at):
            begin = 0 if self._chunked else at if at >= 0 else max(0, len(data) - len(USAGE))
            if len(data) - begin <= _MOST_BYTES:
                self._held = data[begin:]
                return data[:begin]
        if self._chunked:
            return in_chunk(self._path, data, hits)
        return in_length(self._path, data, hits) if self._fixed else with_hits(self._path, data, hits)

    def _is_whole(self, data: bytes, begin: int) -> bool:
        """Whether the usage that begins there has ended, and with it its chunk."""
        if not self._chunked:
            return _is_balanced(data[begin:])
        end = data.find(b"\r\n", begin)
        return end >= 0 and _is_balanced(data[begin:end])

    def flush(self) -> None:
        """Pass on what is held back: nothing more comes."""
        if self._held:
            held, self._held = self._held, b""
            self._sink.write(held)


def _is_balanced(usage: bytes) -> bool:
    """Whether the object in these bytes has ended. Usage has objects inside, and no braces in texts."""
    return usage.count(b"{") <= usage.count(b"}")


def _begins_usage(data: bytes) -> bool:
    """Whether the bytes, or the chunk with which they end, end within the name."""
    data = data[:-2] if data.endswith(b"\r\n") else data
    return any(data.endswith(USAGE[:size]) for size in range(1, len(USAGE)))
