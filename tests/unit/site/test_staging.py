"""Pages at their places in the site: links, lists, navigation."""

import json
from pathlib import PurePosixPath

import pytest
from markdown import markdown
from markdown_it import MarkdownIt

from scripts.contents import contents
from scripts.site.links import ROOT
from scripts.site.markdown import with_separate_lists
from scripts.site.pages import navigation, place, sources
from scripts.site.staging import staged

PAGES = ("README.md", "docs/index.md", "docs/install.md", "docs/connectors/README.md", "benchmarks/gateway/README.md")
LINKS = {
    "between pages of docs": ("docs/index.md", "[a](install.md#b)", "[a](install.md#b)"),
    "to a page outside": ("docs/index.md", "[a](../README.md)", "[a](project/overview.md)"),
    "from a page outside": ("README.md", "[a](docs/install.md#b)", "[a](../install.md#b)"),
    "to a folder with a page": ("README.md", "[a](docs/connectors)", "[a](../connectors/README.md)"),
    "to a file": ("docs/index.md", "[the CRD](../crds/a.yaml)", "the CRD (`crds/a.yaml`)"),
    "to a file by its name": ("docs/index.md", "[`a.yaml`](../crds/a.yaml)", "`crds/a.yaml`"),
    "to a image outside": (
        "benchmarks/gateway/README.md",
        "![a](results/a.svg)",
        "![a](results/a.svg)",
    ),
    "to a image of docs": ("README.md", "![a](docs/bench.svg)", "![a](../bench.svg)"),
    "to another host": ("README.md", "[a](https://example.org)", "[a](https://example.org)"),
    "within the page": ("README.md", "[a](#b)", "[a](#b)"),
    "in code": ("README.md", "`[a](docs/install.md)`", "`[a](docs/install.md)`"),
}


@pytest.mark.parametrize(("source", "text", "expected"), LINKS.values(), ids=LINKS)
def test_links(source: str, text: str, expected: str) -> None:
    pages = {PurePosixPath(path): "" for path in PAGES} | {PurePosixPath(source): f"{text}\n"}
    assert staged(pages).pages[place(PurePosixPath(source))] == f"{expected}\n"


def test_images_come_along() -> None:
    pages = {PurePosixPath("README.md"): "![a](docs/bench.svg) ![b](benchmarks/gateway/results/b.svg)"}
    assert {str(at): str(file) for at, file in staged(pages).images.items()} == {
        "bench.svg": "docs/bench.svg",
        "project/benchmarks/gateway/results/b.svg": "benchmarks/gateway/results/b.svg",
    }


LISTS = {
    "after a paragraph": "Text:\n* a\n* b\n",
    "numbers": "Text:\n1. a\n2. b\n",
    "in an item": "* a\n  * b\n    more\n* c\n",
    "code in an item": "1. a\n\n   ```\n   x\n   ```\n\n2. b\n",
    "a second paragraph": "* a\n\n  b\n\n* c\n",
    "a long line": "* a\nlazy\n* b\n",
    "in an item of two": "1. a\n   * b\n     1. c\n2. d\n",
}


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_lists_are_those_of_commonmark(text: str) -> None:
    expected = MarkdownIt("commonmark").render(text)
    found = markdown(with_separate_lists(text), extensions=["pymdownx.superfences"])
    for tag in ("<ul>", "<ol>", "<li>", "<code>"):
        assert found.count(tag) == expected.count(tag), found


def test_every_page_of_the_checkout_keeps_its_lists_and_tables() -> None:
    commonmark = MarkdownIt("commonmark").enable("table")
    wrong: dict[str, tuple[int, int]] = {}
    for source in sources(ROOT):
        text = (ROOT / source).read_text(encoding="utf-8")
        expected = commonmark.render(text)
        found = markdown(with_separate_lists(text), extensions=["tables", "pymdownx.superfences"])
        counts = {tag: (found.count(tag), expected.count(tag)) for tag in ("<li>", "<table>", "<tr>", "<h2", "<h3")}
        wrong |= {f"{source} {tag}": pair for tag, pair in counts.items() if pair[0] != pair[1]}
    assert not wrong


def test_navigation_has_every_page_once() -> None:
    places = [place(source) for source in sources(ROOT)]
    text = json.dumps(navigation(places))
    assert all(text.count(f'"{each}"') == 1 for each in places)


def test_a_page_without_a_section_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no section .* takes stray\.md"):
        navigation([PurePosixPath("index.md"), PurePosixPath("stray.md")])


def test_sections_without_pages_do_not_exist() -> None:
    assert navigation([PurePosixPath("index.md")]) == [{"Home": ["index.md"]}]


def test_contents_keep_the_introduction() -> None:
    pages = {PurePosixPath("docs/install.md"): "# Install PDX\n", PurePosixPath("docs/index.md"): "# PDX\n"}
    text = contents("# PDX\nWhat it is.\n", pages)
    assert text.startswith("# PDX\nWhat it is.\n")
    assert "* Install and upgrade: [Install PDX](install.md)\n" in text
    assert contents(text, pages) == text
