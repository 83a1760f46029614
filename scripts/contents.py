"""Write the lists of pages in docs/index.md, from the navigation of the site. Pure."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from posixpath import relpath
from typing import Any, Final

from scripts.site.markdown import title
from scripts.site.pages import navigation, place

BEGIN: Final = "<!-- Written by `make generate` from scripts/site/pages.py. -->\n"
_INTRODUCTIONS: Final[Mapping[str, str]] = {
    "Tutorials": "Learn by doing, step by step.",
    "How-to guides": "Reach one goal on your cluster.",
    "Troubleshooting": "Start from what you see.",
    "Reference": "Look up a field, a flag, a metric, a reason.",
    "Explanation": "Understand why PDX works as it does.",
    "Contributing": "Change PDX itself.",
}


def contents(document: str, pages: Mapping[PurePosixPath, str]) -> str:
    """The document with new lists of these pages."""
    by_place = {str(place(source)): source for source in pages}
    sections = [
        f"\n## {name}\n{introduction}\n\n{''.join(_lines(entries, by_place, pages))}"
        for entry in navigation([place(source) for source in pages])
        for name, entries in entry.items()
        if (introduction := _INTRODUCTIONS.get(name))
    ]
    return document.partition(BEGIN)[0] + BEGIN + "".join(sections)


def _lines(
    entries: list[Any], sources: Mapping[str, PurePosixPath], pages: Mapping[PurePosixPath, str]
) -> Iterator[str]:
    """A line for each page, and one for each part with its pages."""
    for entry in entries:
        if isinstance(entry, str):
            yield f"* {_link(sources[entry], pages)}\n"
            continue
        for name, inner in entry.items():
            yield f"* {name}: {', '.join(_link(sources[each], pages) for each in inner)}\n"


def _link(source: PurePosixPath, pages: Mapping[PurePosixPath, str]) -> str:
    return f"[{title(pages[source]) or source.stem}]({relpath(source, 'docs')})"
