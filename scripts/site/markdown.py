"""What a page of Markdown has, as CommonMark reads it: links, anchors and lists. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

_LINK: Final = re.compile(
    r"(?P<bang>!?)\[(?P<text>(?:[^\[\]`]|`[^`]*`|\[[^\]]*\])*)\]\((?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)"
)
_CODE: Final = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_HTML_ANCHOR: Final = re.compile(r"<a (?:name|id)=\"([^\"]+)\"")
_EXTERNAL: Final = re.compile(r"[a-z][a-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Link:
    """A link or an image, and where it stands."""

    line: int
    """Counted from 1."""
    start: int
    end: int
    """The characters of the page that are the link: [start, end)."""
    text: str
    target: str
    """As written, before the `#`."""
    anchor: str
    image: bool

    @property
    def external(self) -> bool:
        """Whether it leads out of the checkout."""
        return bool(_EXTERNAL.match(self.target))


@cache
def tokens(page: str) -> tuple[Token, ...]:
    """The page's tokens: CommonMark with tables."""
    return tuple(MarkdownIt("commonmark").enable("table").parse(page))


def links(page: str) -> Iterator[Link]:
    """The links of a page. Code has none."""
    prose = without_code(page)
    for match in _LINK.finditer(prose):
        target, _, anchor = match["target"].partition("#")
        text = page[match.start("text") : match.end("text")]
        line = page.count("\n", 0, match.start()) + 1
        yield Link(line, match.start(), match.end(), text, target, anchor, bool(match["bang"]))


def without_code(page: str, fill: str = " ") -> str:
    """The page with the same length, where another character fills blocks and spans of code and comments."""
    lines = page.splitlines(keepends=True)
    for token in tokens(page):
        if token.map and (token.type in {"fence", "code_block"} or _is_comment(token)):
            for number in range(*token.map):
                lines[number] = _filled(lines[number], fill)
    return _CODE.sub(lambda code: _filled(code[0], fill), "".join(lines))


def _is_comment(token: Token) -> bool:
    return token.type == "html_block" and token.content.lstrip().startswith("<!--")


def _filled(text: str, fill: str) -> str:
    return re.sub(r"[^\n]", fill, text)


def headings(page: str) -> Iterator[tuple[int, str]]:
    """Level and text of each heading, without marks."""
    found = tokens(page)
    for number, token in enumerate(found):
        if token.type == "heading_open":
            children = found[number + 1].children or ()
            yield int(token.tag[1]), "".join(child.content for child in children)


def title(page: str) -> str | None:
    """The text of the first heading of the first level."""
    return next((text for level, text in headings(page) if level == 1), None)


def anchors(page: str) -> Iterator[str]:
    """The anchors of a page, as GitHub makes them from headings; and those that the page sets itself."""
    seen: dict[str, int] = {}
    for _, text in headings(page):
        slug = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        yield f"{slug}-{count}" if count else slug
    yield from _HTML_ANCHOR.findall(page)


def with_separate_lists(page: str) -> str:
    """The page with a blank line before each list and table, and four columns for the content of an item.

    CommonMark needs neither. Python-Markdown, which renders the site, does.
    """
    lines = page.splitlines()
    depth = [0] * len(lines)
    shift = [0] * len(lines)
    before = set(_crowded(page, lines))
    for token in tokens(page):
        if token.type == "list_item_open" and token.map is not None:
            first, end = token.map
            width = _content_column(lines[first]) - sum(shift[first : first + 1])
            for number in range(first + 1, end):
                depth[number] += 1
                shift[number] += width
    result: list[str] = []
    for number, line in enumerate(lines):
        if number in before:
            result.append("")
        result.append(_indented(line, depth[number], shift[number]))
    return "\n".join(result) + "\n"


def _crowded(page: str, lines: Sequence[str]) -> Iterator[int]:
    """The lines before which Python-Markdown needs a blank one: of lists, tables, and the items of loose lists."""
    loose: list[bool] = []
    for token in tokens(page):
        if token.type in {"bullet_list_close", "ordered_list_close"}:
            loose.pop()
        if token.map is None:
            continue
        first, end = token.map
        if token.type in {"bullet_list_open", "ordered_list_open"}:
            inner = lines[first : end - 1] if not lines[end - 1].strip() else lines[first:end]
            loose.append(any(not line.strip() for line in inner))
        starts = token.type in {"bullet_list_open", "ordered_list_open", "table_open"}
        starts = starts or (token.type == "list_item_open" and loose[-1])
        if starts and first and lines[first - 1].strip():
            yield first


def _content_column(line: str) -> int:
    """The column of an item's text: after blanks, marker and blank."""
    match = re.match(r"\s*(?:[-*+]|\d+[.)])\s+", line)
    return match.end() if match else 2


def _indented(line: str, depth: int, shift: int) -> str:
    blanks = len(line) - len(line.lstrip(" "))
    if not line.strip() or not depth or blanks < shift:  # a paragraph's lazy line stays as it is
        return line
    return " " * 4 * depth + line[shift:]
