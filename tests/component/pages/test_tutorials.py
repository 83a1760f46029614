"""The tutorials that need no vLLM, command by command."""

from pathlib import Path

import pytest

from tests.component.cli.programs import SECONDS, TEST_SECONDS
from tests.documents import ROOT
from tests.page_runner import Reader, fresh_copy


@pytest.mark.timeout(TEST_SECONDS)
@pytest.mark.parametrize("page", ["break-it.md", "gpu-cluster.md"])
def test_a_tutorial_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    reader = Reader(fresh_copy(tmp_path / "pdx"), tmp_path, SECONDS)
    try:
        reader.follow(ROOT / "docs" / "tutorials" / page)
    finally:
        reader.close()
