"""Relays an answer whose usage must have the cache hits of its prompt, and not the KV that D has received."""

from typing import Final

from pdx_proxy.handoff.request import CacheHits
from pdx_proxy.http.upstream.connection import Sink
from pdx_proxy.payload.cache_hits import UNKNOWN, USAGE, in_chunk, with_hits

_MOST_BYTES: Final = 64 * 1024
"""How much of a usage that is not complete is held back."""


class UsageSink:
    """Passes an answer on, with the hits of its prompt as P has reported them by then."""

    __slots__ = ("_held", "_hits", "_path", "_raw", "_sink")

    def __init__(self, sink: Sink, hits: CacheHits, path: str, *, raw: bool) -> None:
        """`raw`: the bytes have the framing of chunks."""
        self._sink = sink
        self._hits = hits
        self._path = path
        self._raw = raw
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
        if hits == UNKNOWN or (at < 0 and (data.endswith(b"\n") or not _begins_usage(data))):
            return data
        whole = data.find(b"\r\n", at) >= 0 if self._raw else _is_whole(data, at)  # raw: to the end of the chunk
        if (at < 0 or not whole) and len(data) <= _MOST_BYTES:
            self._held = data
            return b""
        return (
            in_chunk(self._path, data, self._hits.tokens)
            if self._raw
            else with_hits(self._path, data, self._hits.tokens)
        )

    def flush(self) -> None:
        """Pass on what is held back: nothing more comes."""
        if self._held:
            held, self._held = self._held, b""
            self._sink.write(held)


def _is_whole(data: bytes, begin: int) -> bool:
    """Whether the object that begins there has ended. Usage has objects inside, and no braces in texts."""
    return data.count(b"{", begin) <= data.count(b"}", begin)


def _begins_usage(data: bytes) -> bool:
    """Whether the bytes end within the name."""
    return any(data.endswith(USAGE[:size]) for size in range(1, len(USAGE)))
