"""Bounds of a body's structure, and how deep JSON is nested, found without creating the objects. Pure."""

from array import array
from itertools import accumulate
from typing import Final

MAX_DEPTH: Final = 250
"""The deepest nesting that is accepted. An engine that reads much deeper bodies may fail at them."""
MAX_BRACKETS: Final = 100_000
"""The most arrays and objects in a body. A chat with 1,000 tools and 10,000 messages has about half of them."""
MAX_MEMBERS: Final = 1000
"""The most members of the outer object. vLLM's requests have fewer than 100."""
_FEW: Final = 4
"""Fewer arrays are searched one by one."""

_MARKS: Final = b'"[]{}'
_NO_MARKS: Final = bytes(sorted(set(range(256)) - set(_MARKS)))
_NO_MARKS_NOR_ESCAPES: Final = bytes(sorted(set(range(256)) - set(_MARKS + b"\\/bfnrtu")))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\1\1\377\377")
"""Opening brackets become 1, closing ones -1 as a signed byte."""


def may_be_deep(raw: bytes | bytearray) -> bool:
    """Whether there are enough brackets to exceed the depth or the number of brackets. Those in strings count, too.

    A value at depth d has d opening brackets before it and as many closing brackets behind it. So if the first half of
    the body has few opening ones, and the second half few closing ones, no value is deep.
    """
    half = len(raw) // 2
    return count_of(raw[:half], b"[", b"{") > MAX_DEPTH or count_of(raw[half:], b"]", b"}") > MAX_DEPTH


def count_of(raw: bytes | bytearray, rare: bytes, other: bytes) -> int:
    """How often two characters occur. It takes a little less time if `rare` does so fewer than `_FEW` times.

    In CPython, `find` and `replace` of one byte use memchr: 2 µs for 100 kB without any. `count` takes 30 µs. `find`
    copies nothing, but one call takes longer than `replace` takes for several occurrences.
    """
    others = len(raw) - len(raw.replace(other, b""))
    at = -1
    for number in range(_FEW):
        at = raw.find(rare, at + 1)
        if at < 0:
            return number + others
    return len(raw) - len(raw.replace(rare, b"")) + others


def measure(raw: bytes | bytearray) -> tuple[int, int]:
    """The depth of valid JSON, and how many brackets it opens. Brackets in strings do not count."""
    marks = raw
    if b"\\" in raw:
        marks = raw.translate(None, _NO_MARKS_NOR_ESCAPES).replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = brackets_outside(marks)
    number = count_of(brackets, b"[", b"{")
    if number > MAX_BRACKETS:  # refused whatever its depth is
        return 0, number
    return max(accumulate(array("b", brackets.translate(_STEPS))), default=0), number


def brackets_outside(text: bytes | bytearray) -> bytes | bytearray:
    """The brackets outside strings, in their order. `text` begins outside a string and contains no escaped quote."""
    marks = text.translate(None, _NO_MARKS)
    # An empty string, or the end of one string and the begin of the next: what is inside stays inside.
    marks = marks.replace(b'""', b"")
    return b"".join(marks.split(b'"')[0::2]) if b'"' in marks else marks
