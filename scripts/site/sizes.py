"""Pages that people can read to the end: `python -m scripts.site.sizes`. What `make generate` writes does not count."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from scripts.site.pages import sources

ROOT: Final = Path(__file__).parents[2]
LIMIT: Final = 16_000
"""Bytes of a page."""
TOTAL: Final = 383_900
"""Bytes of all pages of docs/ and the root together: 380,000, and what later features have added (at most 8,000)."""
SMALLER: Final[Mapping[str, int]] = {"ARCHITECTURE.md": 12_000, "CONTRIBUTING.md": 6_000, "docs/glossary.md": 6_000}
"""Pages that everybody reads first."""
GENERATED: Final = frozenset({"docs/reference.md", "docs/reference-cli.md", "docs/reference-chart.md", "CHANGELOG.md"})
"""Pages without a limit, which count in no sum."""
_GENERATED: Final = re.compile(
    r"<!-- Written by `make generate`.*?(?:<!-- End of what `make generate` writes\. -->|\Z)", re.DOTALL
)


def size(page: str) -> int:
    """The bytes that people wrote."""
    return len(_GENERATED.sub("", page).encode())


def problems(pages: Mapping[PurePosixPath, str], total: int) -> Iterator[str]:
    """One sentence for each page that is too large, and for the sum."""
    sizes = {str(path): size(text) for path, text in pages.items() if _counts(path)}
    for path, found in sizes.items():
        limit = SMALLER.get(path, LIMIT)
        if found > limit:
            yield f"{path} has {found} bytes: write at most {limit}, or several pages with one question each"
    if sum(sizes.values()) > total:
        yield f"All pages have {sum(sizes.values())} bytes: write at most {total}"


def _counts(path: PurePosixPath) -> bool:
    return str(path) not in GENERATED and (path.parts[0] == "docs" or len(path.parts) == 1)


def main() -> int:
    """Print the problems; 1 if there are any."""
    pages = {source: (ROOT / source).read_text(encoding="utf-8") for source in sources(ROOT)}
    found = list(problems(pages, TOTAL))
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
