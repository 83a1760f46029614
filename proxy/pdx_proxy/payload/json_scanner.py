"""Reads a large JSON object in slices, between which the caller may do other work.

msgspec checks the syntax of every slice. A slice that begins or ends inside a value is checked as part of a document
that it makes complete: the brackets that are open before it, the slice, and what closes the brackets behind it. If
msgspec accepts each of these documents, the whole value is valid: what closes a document also proves where it ended.
"""

import re
from collections.abc import Generator
from typing import Final, TypeAlias

import msgspec

from pdx_proxy.http.errors import malformed, too_deep, too_long_gap, too_many_brackets, too_many_members
from pdx_proxy.payload.structure import MAX_BRACKETS, MAX_DEPTH, MAX_MEMBERS, brackets_outside, count_of, measure

Span: TypeAlias = tuple[int, int]
"""Where a value begins and ends."""

SLICE_BYTES: Final = 1024 * 1024
"""How much is read at most between two yields, by functions of C that pass over it once (1 to 3 ms)."""
_WINDOW_BYTES: Final = 128 * 1024
"""A value longer than a slice is read in windows of this size, with a dozen passes over each."""
_PASSES: Final = 8
"""How much more a byte of a window costs than one of a slice that is only checked."""
_FINE: Final = 32
"""How much smaller the windows are in which the end of a value is located."""
_SMALLEST_WINDOW: Final = 32
"""Longer than an escape that must not be cut."""
_GROWTH: Final = 4
MAX_GAP_BYTES: Final = 64 * 1024
"""The longest number, name of a member, or run of spaces."""
_LONGEST_ESCAPE: Final = 12
"""A pair of surrogates."""
_LONGEST_CHARACTER: Final = 4
"""Bytes of UTF-8."""
_ENDS_HERE: Final = -1
"""The value ends in this window. Its end is located in smaller ones."""
_TOO_SHORT: Final = -2
"""The window contains no place to cut."""

_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_KEY: Final = msgspec.json.Decoder(str)
_SPACES: Final = re.compile(rb"[ \t\n\r]*")
_SCALAR: Final = re.compile(rb"[^ \t\n\r,\]}]+")
_STRUCTURE: Final = re.compile(rb'["\[\]{}]')
_HIGH_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB]..", re.DOTALL)
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_CLOSING: Final = {0x5B: 0x5D, 0x7B: 0x7D}
_QUOTE: Final = 0x22
_COLON: Final = 0x3A
_COMMA: Final = 0x2C
_OBJECT: Final = 0x7B
_OBJECT_END: Final = 0x7D


class _Place:
    """Where a window begins within a value: the open brackets, and whether that is in a string."""

    __slots__ = ("at", "in_key", "in_string", "stack")

    def __init__(self, at: int, stack: bytes, in_string: bool = False, in_key: bool = False) -> None:
        self.at = at
        self.stack = stack
        self.in_string = in_string
        self.in_key = in_key
        """Whether the string is the key of a member."""

    def before(self) -> bytes:
        """What precedes the window in a document: the value so far, as short as possible."""
        if not self.stack:
            return b""
        prefix = b"".join([b'{"":' if bracket == _OBJECT else b"[" for bracket in self.stack[:-1]])
        in_object = self.stack[-1] == _OBJECT
        if self.in_string:
            return prefix + (b'{"' if self.in_key else b'{"":"' if in_object else b'["')
        return prefix + (b'{"":0,' if in_object else b"[0,")

    def behind(self) -> bytes:
        """What completes a document whose last byte is the one before this place."""
        in_object = self.stack[-1] == _OBJECT
        last = b'"":0' if in_object else b"0"
        if self.in_string:
            last = b'":0' if self.in_key else b'"'
        return last + bytes([_CLOSING[bracket] for bracket in reversed(self.stack)])


class JSONScanner:
    """Finds the members of one JSON object and checks its syntax.

    Its generators yield how many bytes have been read since they yielded last.
    """

    __slots__ = ("_ascii", "_brackets", "_raw", "_simple", "_slice", "_view", "_window", "_work")

    def __init__(
        self, raw: bytes | bytearray, slice_bytes: int = SLICE_BYTES, window_bytes: int = _WINDOW_BYTES
    ) -> None:
        self._raw = raw
        self._view = memoryview(raw)
        self._slice = slice_bytes
        self._window = window_bytes
        self._ascii = raw.isascii()
        self._brackets = 1
        """Brackets that have been opened outside strings."""
        self._simple = MAX_DEPTH - 2
        """How many more brackets may be passed over without a look at where they are."""
        self._work = 0

    def document(self) -> Generator[int, None, dict[str, Span]]:
        """The members of the whole body; raises RefusedError."""
        at = self._skip_spaces(0)
        if self._byte(at) != _OBJECT:
            raise malformed()
        members, at = yield from self.members(at)
        if self._skip_spaces(at) != len(self._raw):
            raise malformed()
        return members

    def members(self, at: int) -> Generator[int, None, tuple[dict[str, Span], int]]:
        """The members of the object that begins at `at`, and its end. Of repeated names, the last counts."""
        found: dict[str, Span] = {}
        at = self._skip_spaces(at + 1)
        if self._byte(at) == _OBJECT_END:
            return found, at + 1
        for _ in range(MAX_MEMBERS):
            if self._byte(at) != _QUOTE:
                raise malformed()
            end = yield from self._string(at)
            if end - at > MAX_GAP_BYTES:
                raise too_long_gap(MAX_GAP_BYTES)
            key = _KEY.decode(self._view[at:end])
            at = self._skip_spaces(end)
            if self._byte(at) != _COLON:
                raise malformed()
            start = self._skip_spaces(at + 1)
            end = yield from self.value(start)
            found[key] = (start, end)
            at = self._skip_spaces(end)
            last = self._byte(at)
            if last == _OBJECT_END:
                return found, at + 1
            if last != _COMMA:
                raise malformed()
            at = self._skip_spaces(at + 1)
        raise too_many_members(MAX_MEMBERS)

    def value(self, at: int) -> Generator[int, None, int]:
        """The end of the value that begins at `at`."""
        first = self._byte(at)
        if first == _QUOTE:
            return (yield from self._string(at))
        if first in _CLOSING:
            return (yield from self._container(at))
        return self._scalar(at)

    def first_element(self, at: int) -> Generator[int, None, tuple[Span, bool]]:
        """The first element of the list that begins at `at`, and whether it is the only one."""
        start = self._skip_spaces(at + 1)
        if self._byte(start) == 0x5D:
            return (start, start), False
        end = yield from self.value(start)
        return (start, end), self._byte(self._skip_spaces(end)) != _COMMA

    def _byte(self, at: int) -> int:
        if at >= len(self._raw):
            raise malformed()
        return self._raw[at]

    def _skip_spaces(self, at: int) -> int:
        if at < len(self._raw) and self._raw[at] > 0x20:
            return at
        found = _SPACES.match(self._raw, at, at + MAX_GAP_BYTES)
        assert found is not None, "the pattern matches nothing, too"
        if found.end() - at == MAX_GAP_BYTES:
            raise too_long_gap(MAX_GAP_BYTES)
        return found.end()

    def _count(self, size: int) -> bool:
        """Count bytes that have been read. Return whether to yield."""
        self._work += size
        return self._work >= self._slice

    def _worked(self) -> int:
        """Bytes that have been read since this was called last."""
        work, self._work = self._work, 0
        return work

    def _check(self, before: bytes, start: int, end: int, behind: bytes) -> None:
        """Check the syntax of a slice, as part of a document."""
        piece = self._view[start:end]
        try:
            _RAW.decode(b"".join((before, piece, behind)) if before or behind else piece)
            if not self._ascii:
                str(piece, "utf-8")
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise malformed() from None
        except RecursionError:
            raise too_deep(MAX_DEPTH) from None

    def _scalar(self, at: int) -> int:
        found = _SCALAR.match(self._raw, at, at + MAX_GAP_BYTES)
        if found is None:
            raise malformed()
        if found.end() - at == MAX_GAP_BYTES:
            raise too_long_gap(MAX_GAP_BYTES)
        self._check(b"", at, found.end(), b"")
        return found.end()

    def _string(self, at: int) -> Generator[int, None, int]:
        end = self._end_within_slice(at, b'"')
        if end < 0:
            return (yield from self._long_string(at + 1))
        if not self._ascii:
            self._check(b"", at, end, b"")
        if self._count(end - at):
            yield self._worked()
        return end

    def _long_string(self, at: int) -> Generator[int, None, int]:
        """The end of a string. `at` is behind its opening quote."""
        while True:
            masked = self._masked(at, self._window)
            end = masked.find(b'"')
            cut = end if end >= 0 else self._cut_in_string(at, masked, 0)
            self._check(b'"', at, at + cut, b'"')
            if self._count(self._window * _PASSES):
                yield self._worked()
            at += cut
            if end >= 0:
                return at + 1

    def _container(self, at: int) -> Generator[int, None, int]:
        """The end of an array or object. One that is shorter than a slice is checked at once."""
        end = self._end_within_slice(at, b"}" if self._raw[at] == _OBJECT else b"]")
        if end < 0:
            return (yield from self._long_container(at))
        self._check_structure(at, end)
        if self._count(end - at):
            yield self._worked()
        return end

    def _end_within_slice(self, at: int, closing: bytes) -> int:
        """The end of a string or container, or -1: it is longer than a slice, or invalid. Checks the syntax up to it.

        msgspec reports where it finds something behind a complete value.
        """
        piece = self._view[at : at + self._slice]
        end = at + len(piece)
        try:
            _RAW.decode(piece)
        except msgspec.DecodeError as error:
            trailing = _TRAILING.search(str(error))
            if trailing is None:
                return -1
            end = at + int(trailing[1]) - 1
        except RecursionError:
            raise too_deep(MAX_DEPTH) from None
        return self._raw.rfind(closing, at, end) + 1

    def _check_structure(self, at: int, end: int) -> None:
        """Check depth, brackets and encoding of a container whose syntax has been checked."""
        text = self._raw[at:end]
        brackets = count_of(text, b"[", b"{")
        if brackets <= self._simple:
            self._simple -= brackets
        else:
            depth, brackets = measure(text)
            if depth >= MAX_DEPTH:
                raise too_deep(MAX_DEPTH)
            self._count_brackets(brackets)
        if not self._ascii:
            try:
                text.decode()
            except UnicodeDecodeError:
                raise malformed() from None

    def _count_brackets(self, count: int) -> None:
        self._brackets += count
        if self._brackets > MAX_BRACKETS:
            raise too_many_brackets(MAX_BRACKETS)

    def _long_container(self, at: int) -> Generator[int, None, int]:
        """The end of an array or object, found window by window."""
        place, window, near_end = _Place(at, b""), self._window, False
        while True:
            masked = self._masked(place.at, window)
            found = self._read_window(place, masked, near_end)
            if isinstance(found, _Place):
                place = found
            elif found >= 0:
                return found
            elif found == _TOO_SHORT:
                window *= _GROWTH
            else:
                window, near_end = max(window // _FINE, _SMALLEST_WINDOW), True
            if self._count(len(masked) * _PASSES):
                yield self._worked()

    def _read_window(self, place: _Place, masked: bytes | bytearray, near_end: bool) -> int | _Place:
        """Read a window: the value's end, or where the next window begins, or why that could not be found."""
        cut, in_string = self._cut(place, masked)
        stack = bytearray(place.stack)
        starts = 0
        marks = masked[:cut] if cut else masked
        brackets = brackets_outside(b'"' + marks if place.in_string else marks)
        for index, bracket in enumerate(brackets):
            if bracket in _CLOSING:
                stack.append(bracket)
                starts += 1
                if len(stack) >= MAX_DEPTH:
                    raise too_deep(MAX_DEPTH)
            elif not stack or _CLOSING[stack.pop()] != bracket:
                raise malformed()
            elif not stack:
                return self._end_at(place, marks, index, starts) if near_end else _ENDS_HERE
        if not cut:
            return self._too_short(place, masked)
        self._count_brackets(starts)
        following = _Place(place.at + cut, bytes(stack), in_string)
        following.in_key = in_string and self._is_key(place, masked, cut, stack[-1])
        self._check(place.before(), place.at, following.at, following.behind())
        return following

    def _too_short(self, place: _Place, masked: bytes | bytearray) -> int:
        """The window contains neither a place to cut nor the end."""
        if place.at + len(masked) >= len(self._raw):
            raise malformed()
        if len(masked) >= MAX_GAP_BYTES:
            raise too_long_gap(MAX_GAP_BYTES)
        return _TOO_SHORT

    def _end_at(self, place: _Place, marks: bytes | bytearray, index: int, starts: int) -> int:
        """The end of the value: the bracket outside strings with this index closes it."""
        self._count_brackets(starts)
        in_string = place.in_string
        for found in _STRUCTURE.finditer(marks):
            if found[0] == b'"':
                in_string = not in_string
            elif not in_string:
                index -= 1
                if index < 0:
                    end = place.at + found.end()
                    self._check(place.before(), place.at, end, b"")
                    return end
        raise AssertionError("the bracket is in the window")

    def _masked(self, at: int, window: int) -> bytes | bytearray:
        """A window in which escaped quotes and backslashes are hidden. It does not end inside such an escape."""
        text = self._raw[at : at + window]
        if not text:
            raise malformed()
        if b"\\" not in text:
            return text
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        return text[:-1] if text.endswith(b"\\") and len(text) > 1 else text

    def _cut(self, place: _Place, masked: bytes | bytearray) -> tuple[int, bool]:
        """Where in a window to cut, and whether that is in a string: behind a comma, or in a string. 0: nowhere."""
        quote = masked.rfind(b'"')
        if place.in_string is (masked.count(b'"') % 2 == 0):
            return self._cut_in_string(place.at, masked, quote + 1), True
        comma = masked.rfind(b",", quote + 1)
        if comma >= 0:
            return comma + 1, False
        return max(quote, 0), True

    def _cut_in_string(self, at: int, masked: bytes | bytearray, low: int) -> int:
        """The end of a window that ends in a string, before any character or escape that it has only a part of."""
        cut = len(masked)
        if at + cut >= len(self._raw):
            raise malformed()
        escape = masked.rfind(b"\\", max(low, cut - _LONGEST_ESCAPE))
        if escape >= 0:
            high = escape - _LONGEST_ESCAPE // 2
            return high if high >= low and _HIGH_SURROGATE.match(masked, high, escape) else escape
        for _ in range(_LONGEST_CHARACTER - 1):
            if cut > low and self._raw[at + cut] & 0xC0 == 0x80:
                cut -= 1
        return cut

    def _is_key(self, place: _Place, masked: bytes | bytearray, cut: int, bracket: int) -> bool:
        """Whether the string around `cut` is the key of a member."""
        begin = masked.rfind(b'"', 0, cut)
        if begin < 0:
            return place.in_key
        before = masked[:begin].rstrip(b" \t\n\r")
        return bracket == _OBJECT and (not before or before[-1] in b"{,")
