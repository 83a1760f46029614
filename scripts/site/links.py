"""Links between pages lead to files, and their anchors to headings: `python -m scripts.site.links`."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

from scripts.site.markdown import Link, anchors, links
from scripts.site.pages import sources

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Broken:
    """A link that leads nowhere."""

    source: PurePosixPath
    link: Link
    reason: str

    def __str__(self) -> str:
        anchor = f"#{self.link.anchor}" if self.link.anchor else ""
        return f"{self.source}:{self.link.line}: {self.link.target}{anchor}: {self.reason}"


def target(source: PurePosixPath, link: Link) -> PurePosixPath:
    """The file of the checkout that a link of a page names."""
    return PurePosixPath(normpath(source.parent / link.target)) if link.target else source


def broken(pages: Mapping[PurePosixPath, str], exists: Callable[[PurePosixPath], bool]) -> Iterator[Broken]:
    """The links of these pages that name no file, or a heading that the page does not have."""
    headings = {path: frozenset(anchors(text)) for path, text in pages.items()}
    for source, text in pages.items():
        for link in links(text):
            if link.external:
                continue
            file = target(source, link)
            if link.target.startswith("/") or not exists(file):
                yield Broken(source, link, "there is no such file; write a path relative to the page")
            elif link.anchor and file in headings and link.anchor not in headings[file]:
                yield Broken(source, link, f"{file} has no such heading")
            elif link.anchor and file not in headings:
                yield Broken(source, link, f"{file} is no page and has no headings")


def main() -> int:
    """Print the broken links; 1 if there are any."""
    pages = {source: (ROOT / source).read_text(encoding="utf-8") for source in sources(ROOT)}
    found = list(broken(pages, lambda path: ".." not in path.parts and (ROOT / path).exists()))
    sys.stderr.writelines(f"{each}\n" for each in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
