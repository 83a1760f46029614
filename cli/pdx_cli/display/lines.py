"""Lines of styled text of a fixed width, and numbers for columns. Pure."""

import math
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


def _ansi(text: str, parameters: str) -> str:
    return f"\x1b[{parameters}m{text}\x1b[0m" if parameters and text else text


def shortened(text: str, width: int) -> str:
    """Return the text with an ellipsis in its middle if it is too long: names of pods differ at their ends."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}" if width > 1 else text[:width]


def duration(seconds: float | None) -> str:
    """Format with three digits and a unit; a dash for None and NaN."""
    if seconds is None or math.isnan(seconds):
        return "-"
    return (
        f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
    )


def percent(share: float | None) -> str:
    """Format a share as a percentage; a dash for None."""
    return "-" if share is None else f"{100 * share:.0f}%"


def count(number: float | None) -> str:
    """Format a number in at most five characters; a dash for None."""
    if number is None or math.isnan(number):
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            scaled = number / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
