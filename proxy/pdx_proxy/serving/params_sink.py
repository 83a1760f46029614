"""Relays an answer without the hand-off parameters of its engine, which are addresses and numbers of blocks.

Each value of `kv_transfer_params` that is a filled object becomes `null` and spaces: as many bytes as before, so that
the framing of chunks stays right. Answers without one pass unchanged, after one search.
"""

import re
from typing import Final

from pdx_proxy.http.upstream.connection import Sink

_FILLED: Final = b'"kv_transfer_params":{"'
_OWN: Final = (b"do_remote_", b"remote_", b"transfer_id")
"""How the first member of vLLM's values begins. A client's JSON that an answer repeats, such as the schema of a tool,
may have a member of the same name."""
_EMPTY: Final = b'"kv_transfer_params":null'
_TAIL_BYTES: Final = 160
"""Behind the member, a whole answer has members that are mostly null."""
_NULL: Final = b"null"
_CR, _LF, _QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'\r\n"\\{}'
_OUTSIDE: Final = re.compile(rb'(?:[^"{}\r]++|"(?:[^"\\\r]++|(?:\\[^\r])++)*+")*+')
"""What has no brace outside of a string: whole strings and all between them."""
_INSIDE: Final = re.compile(rb'(?:[^"\\\r]++|(?:\\[^\r])++)*+')
"""The rest of a string, up to its quotation mark."""
_MOST_OBJECTS: Final = 256
"""An answer whose values contain more objects is not vLLM's (its values contain none): the rest of it is hidden."""
_UNENDING: Final = 1 << 60
"""The depth of a value that is hidden up to the end of the answer."""


class ParamsSink:
    """Passes an answer on, with `null` for each filled value."""

    __slots__ = ("_depth", "_escaped", "_held", "_lines", "_objects", "_quoted", "_sink", "_written")

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink
        self._held = b""
        """The beginning of what may be a filled value."""
        self._depth = 0
        """Objects that are open in the value; 0: outside of one."""
        self._written = 0
        """Bytes that were written in place of the value."""
        self._objects = 0
        """Objects that the values have contained."""
        self._quoted = False
        self._escaped = False
        self._lines = 0
        """Lines of the framing that are still to come within the value: a chunk has ended there."""

    def write(self, data: bytes) -> None:
        """Pass on bytes, but for an end that may begin a filled value."""
        changed = self.change(data)
        if changed and self._sink is not None:
            self._sink.write(changed)

    def change(self, data: bytes) -> bytes:
        """Return what may be passed on now."""
        if self._held:
            data, self._held = self._held + data, b""
        if not self._depth and data.find(_FILLED) < 0:
            return data if data.endswith(b"\n") else self._hold(data)
        return self._replace(data)

    def flush(self) -> None:
        """Pass on what is held back: nothing more comes."""
        held = self.rest()
        if held and self._sink is not None:
            self._sink.write(held)

    def rest(self) -> bytes:
        """Return what is held back, once nothing more comes."""
        held, self._held = self._held, b""
        return held

    def _hold(self, data: bytes) -> bytes:
        """Pass on what cannot begin a filled value. An end behind the member's name is held back as well."""
        found = data.rfind(_FILLED)
        if found >= 0 and any(own.startswith(data[found + len(_FILLED) :]) for own in _OWN):
            self._held = data[found:]
            return data[:found]
        for size in range(len(_FILLED) - 1, 0, -1):
            if data.endswith(_FILLED[:size]):
                self._held = data[-size:]
                return data[:-size]
        return data

    def _replace(self, data: bytes) -> bytes:
        out, at = bytearray(), 0
        while True:
            if self._depth:
                at = self._skip(data, at, out)
                if self._depth:
                    return bytes(out)
            found = self._find(data, at)
            if found < 0:
                out += self._hold(data[at:])
                return bytes(out)
            value = found + len(_FILLED) - 1
            out += data[at : value - 1]
            out.append(_NULL[0])
            self._depth, self._written, at = 1, 1, value

    def _find(self, data: bytes, at: int) -> int:
        """Where the next of vLLM's values begins; -1 if none does."""
        found = data.find(_FILLED, at)
        while found >= 0 and not data.startswith(_OWN, found + len(_FILLED)):
            found = data.find(_FILLED, found + 1)
        return found

    def _skip(self, data: bytes, at: int, out: bytearray) -> int:
        """Write over the value from here to its end; return where that is. JSON on one line contains no CR."""
        while at < len(data) and self._depth:
            if self._lines:
                end = data.find(_LF, at) + 1
                self._lines -= end > 0
                end = end or len(data)
                out += data[at:end]
            elif data[at] == _CR:
                self._lines, end = 2, at + 1
                out.append(_CR)
            else:
                end = self._read(data, at)
                self._hide(end - at, out)
            at = end
        return at

    def _hide(self, size: int, out: bytearray) -> None:
        """Write as many bytes of `null` and spaces."""
        word = _NULL[self._written : self._written + size]
        self._written += len(word)
        out += word.ljust(size)

    def _read(self, data: bytes, at: int) -> int:
        """Read on from here in the value; return where the next thing begins."""
        if self._depth >= _UNENDING:
            end = data.find(_CR, at)
            return end if end >= 0 else len(data)
        if self._escaped:
            self._escaped = False
            return at + 1
        run = (_INSIDE if self._quoted else _OUTSIDE).match(data, at)
        assert run is not None, "it matches an empty text"
        return run.end() if run.end() > at else self._turn(data[at], at)

    def _turn(self, byte: int, at: int) -> int:
        """Read a byte at which an object or a string begins or ends, or the escape at the end of the data."""
        if byte == _QUOTE:
            self._quoted = not self._quoted
        elif byte == _BACKSLASH:
            self._escaped = True
        elif byte == _CLOSE:
            self._depth -= 1
        else:
            assert byte == _OPEN, "a run ends at nothing else"
            self._objects += 1
            self._depth = _UNENDING if self._objects > _MOST_OBJECTS else self._depth + 1
        return at + 1


def without_params(body: bytes, *, stream: bool) -> bytes:
    """Return a complete answer with `null` for each filled value."""
    if not stream and body.rfind(_EMPTY, max(0, len(body) - _TAIL_BYTES)) >= 0:
        return body
    if body.find(_FILLED) < 0:
        return body
    sink = ParamsSink()
    return sink.change(body) + sink.rest()
