"""Lines of the screen, and numbers for their columns. Pure."""

import math
import textwrap
from typing import Final

from rich.text import Text

BAR: Final = "reverse"
"""Style of the footer and of the heads of columns."""
BAD: Final = "bold red"


def line(*pieces: str | tuple[str, str], style: str = "", width: int | None = None) -> Text:
    """Return a line of plain and styled pieces; an ellipsis marks what does not fit into `width` columns."""
    text = Text.assemble(*pieces, style=style, no_wrap=True, overflow="ellipsis")
    if width is not None:
        text.truncate(width)
    return text


def wrapped(text: str, width: int, most: int = 5) -> list[str]:
    """Break the text at blanks into at most so many lines of that width; an ellipsis marks what is missing."""
    width = max(2, width)
    lines = textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)
    return lines if len(lines) <= most else [*lines[: most - 1], f"{' '.join(lines[most - 1 :])[: width - 1]}…"]


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


def count(number: float | None, *, digits: int = 3) -> str:
    """Format a number in at most five characters, or in four with two `digits`; a dash for None."""
    if number is None or math.isnan(number):
        return "-"
    for limit, scale, unit in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (9999.5, 1e3, "k")):
        if number >= limit:
            scaled = number / scale
            return f"{scaled:.{int(round(scaled, 1) < 10 ** (digits - 1))}f}{unit}"
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
