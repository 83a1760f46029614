"""Draws docs/doctor.svg: what the tutorial Break it shows after it has blocked the transfer. Pure.

`make generate` writes the picture from the page, whose commands and outputs a test runs.
"""

import re
import textwrap
from typing import Final

import pyte

from scripts.top_svg import svg

_COLUMNS: Final = 92
_BLOCK: Final = re.compile(r"```sh\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
_TITLE: Final = "pdx doctor names the cause, and the verdict that the operator reads"
_COLOURS: Final = ((re.compile(r"^\$ "), "1"), (re.compile(r"^✗ |broken"), "31"), (re.compile(r"^ +Likely"), "32"))


def figure(page: str) -> str:
    """The picture, from the text of the tutorial."""
    section = page.partition("## Block the transfer")[2].partition("\n## ")[0]
    shown = [
        (command.strip(), output)
        for command, output in _BLOCK.findall(section)
        if command.startswith("pdx doctor") or "verification" in command
    ]
    if not shown:
        return ""
    lines = [line for command, output in shown for line in (f"$ {command}", *_wrapped(output), "")][:-1]
    screen = pyte.Screen(_COLUMNS, len(lines))
    stream = pyte.Stream(screen)
    for number, line in enumerate(lines, 1):
        stream.feed(f"\x1b[{number};1H{_coloured(line)}")
    return svg([[screen.buffer[row][column] for column in range(_COLUMNS)] for row in range(len(lines))], _TITLE)


def _wrapped(output: str) -> list[str]:
    found = []
    for line in output.strip().splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        found += textwrap.wrap(line, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return found


def _coloured(line: str) -> str:
    code = next((code for pattern, code in _COLOURS if pattern.search(line)), "0")
    return f"\x1b[{code}m{line}\x1b[0m"
