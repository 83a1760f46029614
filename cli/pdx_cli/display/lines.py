"""Lines of styled text of a fixed width, and numbers for columns. Pure."""

import math
import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Style(StrEnum):
    """How a piece of text is shown; the value is its parameters of ANSI's SGR sequence."""

    PLAIN = ""
    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BAD = "1;31"
    BAR = "7"
    """Inverse: the footer and the heads of columns."""


_COLOURS: Final = {Style.RED: "", Style.GREEN: "", Style.YELLOW: "", Style.BAD: "1"}
"""Style -> what is left of it without colours."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the screen."""

    pieces: tuple[tuple[str, Style], ...] = ()

    @property
    def text(self) -> str:
        """The text without styles."""
        return "".join(text for text, _ in self.pieces)

    def dimmed(self) -> "Line":
        """Return the line in the style of what is past; the heads of columns stay."""
        return Line(tuple((text, style if style is Style.BAR else Style.DIM) for text, style in self.pieces))

    def cut(self, width: int) -> "Line":
        """Return the line with at most `width` characters; an ellipsis marks what is missing."""
        if len(self.text) <= width:
            return self
        left, pieces = max(0, width - 1), []
        for text, style in self.pieces:
            pieces.append((text[:left], style))
            left -= len(text[:left])
        return Line((*pieces, ("…", Style.DIM)) if width else ())

    def ansi(self, *, styled: bool, coloured: bool) -> str:
        """Return the line for a terminal; without styles, only its text."""
        if not styled:
            return self.text.rstrip()
        return "".join(_ansi(text, style if coloured else _COLOURS.get(style, style)) for text, style in self.pieces)


def line(*pieces: str | tuple[str, Style]) -> Line:
    """Return a line of plain and styled pieces."""
    return Line(tuple((piece, Style.PLAIN) if isinstance(piece, str) else piece for piece in pieces))


def wrapped(text: str, width: int, most: int = 5) -> list[str]:
    """Break the text at blanks into at most so many lines of that width; an ellipsis marks what is missing."""
    width = max(2, width)
    lines = textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)
    return lines if len(lines) <= most else [*lines[: most - 1], f"{' '.join(lines[most - 1 :])[: width - 1]}…"]


def _ansi(text: str, parameters: str) -> str:
    return f"\x1b[{parameters}m{text}\x1b[0m" if parameters and text else text


def shortened(text: str, width: int) -> str:
    """Return the text with an ellipsis in its middle if it is too long: names of pods differ at their ends."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}" if width > 1 else text[:width]


def duration(seconds: float | None) -> str:
    """Format with three digits and a unit, in at most seven characters; a dash for None and NaN."""
    if seconds is None or math.isnan(seconds):
        return "-"
    if seconds < 0.9995e-3:
        return f"{1e6 * seconds:.0f} µs"
    for limit, scale, unit in ((0.9995, 1e3, "ms"), (999.5, 1.0, "s")):
        if seconds < limit:
            return f"{scale * seconds:.3g} {unit}"
    return f"{seconds:.0f} s" if seconds < 99_999.5 else f"{seconds / 3600:.0f} h"


def percent(share: float | None) -> str:
    """Format a share as a percentage; a dash for None."""
    return "-" if share is None else f"{100 * share:.0f}%"


def amount(number: int, noun: str, total: int | None = None) -> str:
    """Return for example `1 pair`, `2 pairs`, or with a total `1 of 9 pairs`."""
    plural = "" if (number if total is None else total) == 1 else "s"
    return f"{number} {noun}{plural}" if total is None else f"{number} of {total} {noun}{plural}"


def count(number: float | None, *, digits: int = 3) -> str:
    """Format a number in at most five characters, or in four with two `digits`; a dash for None."""
    if number is None or math.isnan(number):
        return "-"
    for limit, scale, unit in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (9999.5, 1e3, "k")):
        if number >= limit:
            scaled = number / scale
            return f"{scaled:.{int(round(scaled, 1) < 10 ** (digits - 1))}f}{unit}"
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
