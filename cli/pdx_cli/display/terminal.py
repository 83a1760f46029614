"""The terminal of `pdx top`: its alternate screen, its keys and its size. It is restored however the command ends."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pdx_cli.display.lines import Line

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen, no cursor, no wrapping of lines."""
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"


def is_interactive(environment: Mapping[str, str]) -> bool:
    """Whether stdout is a terminal that can show one screen in place of another."""
    return sys.stdout.isatty() and environment.get("TERM", "dumb") not in ("dumb", "", "unknown")


def size() -> os.terminal_size:
    """Return the size of the terminal on stdout.

    The variables COLUMNS and LINES count only where the terminal has none: they do not follow a new size.
    """
    with contextlib.suppress(OSError):  # the terminal is gone
        found = os.get_terminal_size(1)
        if found.columns and found.lines:
            return found
    return shutil.get_terminal_size()


def is_coloured(environment: Mapping[str, str]) -> bool:
    """Whether colours are welcome (no-color.org)."""
    return not environment.get("NO_COLOR")


def encodable(text: str) -> str:
    """Return the text with ASCII in place of the arrows and marks that stdout cannot write."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for character, plain in (
            ("→", "->"),
            ("…", "."),
            ("µ", "u"),
            ("✗", "x"),
            ("↑↓", "arrows"),
            ("↑", "up"),
            ("↓", "down"),
        ):
            text = text.replace(character, plain)
        text = text.encode(encoding, "replace").decode(encoding)
    return text


class Terminal:
    """A terminal in its alternate screen."""

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._modes = termios.tcgetattr(0) if sys.stdin.isatty() else None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        columns, lines = size()
        return max(20, columns), max(5, lines)

    def enter(self) -> None:
        """Show the alternate screen, and read keys without Enter."""
        if self._modes is not None:
            tty.setcbreak(0)
        self._write(_ENTER)

    def leave(self) -> None:
        """Restore the terminal."""
        self._write(_LEAVE)
        if self._modes is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def draw(self, lines: Sequence[Line]) -> None:
        """Replace the screen's content; there is one line for each of the terminal's."""
        # A line is erased before it is written: after a line of the whole width, the cursor is on its last character.
        rows = "\r\n".join(f"\x1b[K{each.ansi(styled=True, coloured=self._coloured)}" for each in lines)
        self._write(f"\x1b[?2026h\x1b[H{encodable(rows)}\x1b[?2026l")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    @contextlib.contextmanager
    def watched(self, on_keys: Callable[[bytes], None], on_resize: Callable[[], None]) -> Iterator[None]:
        """Report keys and new sizes on the running loop; Ctrl-Z leaves the screen until the command continues."""
        loop = asyncio.get_running_loop()
        if self._modes is not None:
            loop.add_reader(0, lambda: on_keys(os.read(0, 1024)))
        loop.add_signal_handler(signal.SIGWINCH, on_resize)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        try:
            yield
        finally:
            for number in (signal.SIGWINCH, signal.SIGTSTP):
                loop.remove_signal_handler(number)
            if self._modes is not None:
                loop.remove_reader(0)

    def _suspend(self) -> None:
        self.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.enter()
