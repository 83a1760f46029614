"""Pages as MkDocs takes them: at their places in the site, with links between those places. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import relpath
from typing import Final

from scripts.site.links import target
from scripts.site.markdown import Link, links, with_separate_lists
from scripts.site.pages import place

_IMAGES: Final = frozenset({".svg", ".png", ".gif", ".webp"})


@dataclass(frozen=True, slots=True)
class Staged:
    """What goes into the folder that MkDocs reads."""

    pages: Mapping[PurePosixPath, str]
    images: Mapping[PurePosixPath, PurePosixPath]
    """Place in the site -> file of the checkout."""


def staged(pages: Mapping[PurePosixPath, str]) -> Staged:
    """Stage these pages, and the images to which they link."""
    images = {
        place(file): file
        for source, text in pages.items()
        for link in links(text)
        if not link.external and (file := target(source, link)).suffix in _IMAGES
    }
    return Staged({place(source): staged_page(source, text, pages) for source, text in pages.items()}, images)


def staged_page(source: PurePosixPath, text: str, pages: Mapping[PurePosixPath, str]) -> str:
    """One page with the links of its place in the site, and with lists that Python-Markdown reads."""
    return with_separate_lists(_replaced(text, links(text), lambda link: _link(source, link, pages)))


def _replaced(text: str, found: Iterator[Link], new: Callable[[Link], str]) -> str:
    parts: list[str] = []
    end = 0
    for link in found:
        parts += [text[end : link.start], new(link)]
        end = link.end
    return "".join([*parts, text[end:]])


def _link(source: PurePosixPath, link: Link, pages: Mapping[PurePosixPath, str]) -> str:
    """A link between pages or to an image; other files of the checkout become their path as code."""
    bang = "!" if link.image else ""
    anchor = f"#{link.anchor}" if link.anchor else ""
    if link.external or not link.target:
        return f"{bang}[{link.text}]({link.target}{anchor})"
    file = target(source, link)
    page = next((each for each in (file, file / "README.md") if each in pages), None)
    if page is not None or file.suffix in _IMAGES:
        return f"{bang}[{link.text}]({relpath(place(page or file), place(source).parent)}{anchor})"
    if file.parts[0] == "docs" and file.suffix == ".md":  # MkDocs reports it
        return f"[{link.text}]({link.target}{anchor})"
    name = link.text.strip("`")
    return f"`{file}`" if str(file).endswith(name) else f"{link.text} (`{file}`)"
