"""The terminal of `pdx top`: its size, and what it cannot write."""

import io
import os

import pytest

from pdx_cli.display import terminal
from pdx_cli.display.lines import line


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
