"""Links and anchors of pages, as GitHub reads them."""

from pathlib import PurePosixPath

import pytest

from scripts.site.links import ROOT, broken
from scripts.site.markdown import anchors, links
from scripts.site.pages import OUTSIDE, sources

BROKEN = {
    "a file": "[a](nothing.md)",
    "a image": "![a](nothing.svg)",
    "an anchor of another page": "[a](other.md#nothing)",
    "an anchor of the page": "[a](#nothing)",
    "an anchor of a file that is no page": "[a](code.py#L1)",
    "a path from the root": "[a](/docs/other.md)",
    "beyond the checkout": "[a](../../other.md)",
    "in a table": "| a |\n|---|\n| [a](nothing.md) |",
    "beside code": "`[a](other.md)` [b](nothing.md)",
    "with code as its text": "[`a[0]`](nothing.md)",
}
SOUND = {
    "an anchor": "[a](other.md#a-heading-with-code)",
    "the second heading of a name": "[a](other.md#twice-1)",
    "its own anchor": "# Here\n[a](#here)",
    "a folder": "[a](folder)",
    "another host": "[a](https://example.org/nothing.md)",
    "code": "`[a](nothing.md)`",
    "a block of code": "```\n[a](nothing.md)\n```",
    "a comment": "<!-- [a](nothing.md) -->",
}
OTHER = "# A heading, with `code`\n## Twice\n## Twice\n"
FILES = {"docs/other.md", "docs/page.md", "docs/code.py", "docs/folder"}


def found(text: str) -> list[str]:
    """The targets of the broken links of a page."""
    pages = {PurePosixPath("docs/page.md"): text, PurePosixPath("docs/other.md"): OTHER}
    return [each.link.target for each in broken(pages, lambda path: str(path) in FILES)]


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_link_is_found(text: str) -> None:
    assert len(found(text)) == 1


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_a_sound_link_is_not(text: str) -> None:
    assert not found(text)


def test_a_broken_link_names_its_line() -> None:
    pages = {PurePosixPath("docs/page.md"): "One\n\n[a](nothing.md#b)\n"}
    (each,) = broken(pages, lambda path: False)
    assert str(each).startswith("docs/page.md:3: nothing.md#b: ")


def test_anchors() -> None:
    page = '# `pdx_api` and *vLLM*: 1.5 - what?\n<a id="own"></a>\n\n## A_b\n'
    assert list(anchors(page)) == ["pdx_api-and-vllm-15---what", "a_b", "own"]


def test_every_link_that_a_page_has_is_seen() -> None:
    seen = [link.target for link in links("[a](b(c).md) ![d](e.svg) [`f`](g.md#h) [[i](j.md)](k.md)")]
    assert seen == ["b(c).md", "e.svg", "g.md", "k.md"]


def test_the_pages_of_the_checkout() -> None:
    found = set(map(str, sources(ROOT)))
    assert {"docs/index.md", "docs/connectors/nixl.md", "README.md", "benchmarks/gateway/README.md"} <= found
    assert {path for path in OUTSIDE if (ROOT / path).is_file()} <= found
