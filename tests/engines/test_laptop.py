"""The tutorial of the laptop with real vLLM, command by command. README's first commands are the same."""

from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.page_runner import Reader, fresh_copy

SECONDS = 400.0

pytestmark = pytest.mark.timeout(600)


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    reader = Reader(fresh_copy(tmp_path / "pdx"), tmp_path, SECONDS)
    try:
        reader.follow(ROOT / "docs" / "tutorials" / "laptop.md")
    finally:
        reader.close()
