"""The terminal of `pdx top`: its size, and what it cannot write."""

import io
import os

import pyte
import pytest
from rich.text import Text

from pdx_cli.display import terminal
from pdx_cli.display.lines import line


class Written(io.StringIO):
    """What a terminal gets."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("own", "size"), [((120, 40), (120, 40)), ((0, 0), (100, 30))])
def test_the_environment_counts_only_without_a_size(
    own: tuple[int, int], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size(own))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    assert terminal.size() == size


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("utf-8", "✗ p → d 9 µs ↑↓ …"), ("ascii", "x p -> d 9 us ^v ."), ("latin-1", "x p -> d 9 µs ^v .")],
)
def test_stdout_that_cannot_write_a_character(encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding, write_through=True))
    terminal.console(80).print(line("✗ p → d 9 µs ↑↓ …"))
    assert written.getvalue().decode(encoding) == f"{shown}\n"


@pytest.mark.parametrize("columns", [100, 110])
def test_a_dumb_terminal_has_its_own_columns(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout", written := Written())
    terminal.console(columns).print(line("x" * columns))
    assert written.getvalue() == "x" * columns + "\n"


def test_a_pipe_gets_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """FORCE_COLOR is for programs that cannot see where their output goes."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout", written := io.StringIO())
    terminal.console(80).print(Text("failed", style="bold red"))
    assert written.getvalue() == "failed\n"


def test_a_terminal_of_fifteen_columns_cuts_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines have twenty columns at least; wrapped, they would move the head out of sight."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((15, 6)))
    monkeypatch.setattr("sys.stdout", written := Written())
    screen = pyte.Screen(15, 6)
    shown = terminal.Terminal()
    shown.enter()
    shown.draw([line(f"{number} {'x' * 17}") for number in range(6)])
    pyte.Stream(screen).feed(written.getvalue().replace("\n", "\r\n"))
    assert [each[:2] for each in screen.display] == [f"{number} " for number in range(6)]
    shown.leave()
    pyte.Stream(screen).feed(written.getvalue().replace("\n", "\r\n"))
    assert pyte.modes.DECAWM in screen.mode, "the shell wraps its lines"
