"""The terminal of `pdx top`: its screen, its keys and its size. It is restored however the command ends."""

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

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pdx_cli import streams

_BEGIN: Final = "\x1b[?2026h"
_END: Final = "\x1b[?2026l"
"""Around an update, which terminals then show at once."""
_NO_WRAP: Final = "\x1b[?7l"
_WRAP: Final = "\x1b[?7h"
"""A line that is longer than a very narrow terminal is cut, so that the head stays on the screen."""


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


def console(columns: int) -> Console:
    """Return the console on stdout, in so many columns. NO_COLOR switches its colours off."""
    streams.replace_unwritable()
    # Without a height, rich takes 80 columns for a terminal whose TERM is dumb. FORCE_COLOR does not make a pipe one.
    return Console(width=columns, height=size().lines, force_terminal=is_interactive(os.environ), highlight=False)


class Terminal:
    """A terminal in its alternate screen."""

    def __init__(self) -> None:
        self._console = console(self.size[0])
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
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
        self._live.start()
        self._write(_NO_WRAP)

    def leave(self) -> None:
        """Restore the terminal."""
        self._write(_WRAP)
        self._live.stop()
        if self._modes is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def draw(self, lines: Sequence[Text]) -> None:
        """Replace the screen's content; there is one line for each of the terminal's."""
        self._console.size = self.size
        self._write(_BEGIN)
        self._live.update(Group(*lines), refresh=True)
        self._write(_END)

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
