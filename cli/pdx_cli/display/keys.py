"""What the keys of `pdx top` do to its view. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from pdx_cli.display.layout import Page
from pdx_cli.display.legend import SOURCES, Sort
from pdx_cli.display.lines import BAR, line, wrapped

_KEYS: Final = """\
q, Ctrl-C   end                       s, S        next, previous order
↑ ↓ k j     scroll by a line          PgUp PgDn   scroll by a page
Home, End   first, last line          space       update now
?           this help; any key closes it"""
_NARROW_KEYS: Final = """\
q, Ctrl-C   end
↑ ↓ k j     scroll by a line
PgUp PgDn   scroll by a page
Home, End   first, last line
s, S        next, previous order
space       update now
?           this help; any key closes it"""
NARROW: Final = 70
"""Columns below which the help has one key per line."""

HELP: Final = f"""\
{_KEYS}

Rates and times cover the requests between two updates.
{SOURCES}"""


@dataclass(frozen=True, slots=True)
class View:
    """What the user has chosen."""

    sort: Sort = Sort.STATE
    offset: int = 0
    """First line of the body that is shown."""
    is_help: bool = False


def pressed(view: View, key: str, page_lines: int) -> View:
    """Return the view after a key; `page_lines` are the lines of the body on the screen."""
    if view.is_help:
        return replace(view, is_help=False)
    steps = {
        "up": -1,
        "k": -1,
        "down": 1,
        "j": 1,
        "pgup": -page_lines,
        "pgdn": page_lines,
        "home": -(10**6),
        "end": 10**6,
    }
    if key in steps:
        return replace(view, offset=max(0, view.offset + steps[key]))
    if key in ("s", "S"):
        sorts = list(Sort)
        following = sorts[(sorts.index(view.sort) + (1 if key == "s" else -1)) % len(sorts)]
        return replace(view, sort=following, offset=0)
    return replace(view, is_help=True) if key in ("?", "h") else view


def fitted(view: View, shown: Page, height: int) -> View:
    """Return the view with an offset that the body has."""
    room = body_lines(shown, height)
    return replace(view, offset=max(0, min(view.offset, len(shown.body) - room)))


def body_lines(shown: Page, height: int) -> int:
    """Return how many lines of the body fit on a screen with so many lines."""
    return max(1, height - len(shown.head) - 1)


def screen(view: View, shown: Page, width: int, height: int, message: str = "") -> list[Text]:
    """Return the lines of the whole screen: head, a part of the body, footer."""
    if view.is_help:
        text = HELP if width >= NARROW else HELP.replace(_KEYS, _NARROW_KEYS)
        rows = [line(each, width=width) for each in text.splitlines()]
        return [*rows[: height - 1], *[Text()] * (height - 1 - len(rows)), _footer(["any key: back"], width)]
    messages = wrapped(message, width - 2, height // 2)
    height -= max(0, len(messages) - 1)
    view, room = fitted(view, shown, height), body_lines(shown, height)
    head = [*shown.head[:-1][: max(0, height - 3)], *shown.head[-1:]]  # the names of the columns stay
    rows = [*head, *shown.body[view.offset : view.offset + room]]
    last = min(view.offset + room, len(shown.body))
    hidden = [f"↑↓ lines {view.offset + 1}-{last} of {len(shown.body)}"] if len(shown.body) > room else []
    items = ["q quit", "? help", *hidden, f"s sort: {view.sort}"]
    footers = [_footer([each], width) for each in messages] or [_footer(items, width)]
    return [*rows, *[Text()] * (height - 1 - len(rows)), *footers]


def _footer(items: Sequence[str], width: int) -> Text:
    """Return the footer with the first item, and with the others from the left that fit."""
    text = f" {items[0]}"
    for item in items[1:]:
        if len(text) + len(item) + 2 > width:
            break
        text = f"{text}  {item}"
    return line(text.ljust(width), style=BAR, width=width)


_SEQUENCES: Final = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down", b"\x1b[5~": "pgup", b"\x1b[6~": "pgdn",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1bOH": "home", b"\x1bOF": "end", b"\x1b[1~": "home", b"\x1b[4~": "end",
}  # fmt: skip


def read_keys(data: bytes) -> list[str]:
    """Return the keys in what a terminal has sent."""
    keys = []
    while data:
        sequence = next((each for each in _SEQUENCES if data.startswith(each)), None)
        if sequence is not None:
            keys.append(_SEQUENCES[sequence])
            data = data[len(sequence) :]
        else:
            keys.append("escape" if data[:1] == b"\x1b" else data[:1].decode("latin-1"))
            data = data[1:]
    return keys
