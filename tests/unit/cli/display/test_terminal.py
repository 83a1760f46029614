"""The size of the terminal of `pdx top`."""

import os

import pytest

from pdx_cli.display import terminal


@pytest.mark.parametrize(("own", "size"), [((120, 40), (120, 40)), ((0, 0), (100, 30))])
def test_the_environment_counts_only_without_a_size(
    own: tuple[int, int], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size(own))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    assert terminal.size() == size
