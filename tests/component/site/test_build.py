"""The build of the site is strict."""

import shutil
from pathlib import Path

import pytest

from scripts.site.__main__ import build
from tests.documents import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two pages."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# PDX\n[a](faq.md#a) ![a](a.svg) [b](../b.py)\n")
    (tmp_path / "docs" / "faq.md").write_text("# Questions\n## A\n")
    (tmp_path / "docs" / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>\n")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    return tmp_path


def test_a_sound_site(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(checkout, checkout / "build") == 0
    page = (checkout / "build" / "site" / "index.html").read_text()
    assert 'href="faq.html#a"' in page
    assert 'src="a.svg"' in page
    assert "<code>b.py</code>" in page
    assert not capsys.readouterr().err


BROKEN = {"an anchor": "[a](faq.md#b)\n", "a page": "[a](none.md)\n", "a page below docs": "[a](how-to/none.md)\n"}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_link_fails(checkout: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "docs" / "faq.md").write_text(f"# Questions\n## A\n{text}")
    assert build(checkout, checkout / "build") == 1
    assert "faq.md" in capsys.readouterr().err


def test_a_page_in_no_section_fails(checkout: Path) -> None:
    (checkout / "docs" / "stray.md").write_text("# Stray\n")
    with pytest.raises(ValueError, match=r"takes stray\.md"):
        build(checkout, checkout / "build")
