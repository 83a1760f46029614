"""The size of the terminal of `pdx top`."""

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


def test_the_last_column_is_not_erased(capsys: pytest.CaptureFixture[str]) -> None:
    """Without wrapping, the cursor stays on the last character of a full line, which an erasure would take."""
    terminal.Terminal(coloured=False).draw([line("every 2 s"), line("q quit")])
    drawn = capsys.readouterr().out
    assert drawn.count("\x1b[K") == 2
    for text in ("every 2 s", "q quit"):
        before, after = drawn.split(text)
        assert before.endswith("\x1b[K")
        assert not after.startswith(("\x1b[K", "\x1b[J"))
