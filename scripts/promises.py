"""docs/security-tests.md: keeps its prose and generates its tables from tests/promises.toml."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

BEGIN: Final = "<!-- Written by `make generate` from tests/promises.toml. -->\n"
FILE: Final = Path(__file__).parents[1] / "tests" / "promises.toml"


def sections() -> list[dict[str, Any]]:
    """The tables: title, text, head of the first column, and rows of what, happens (may be absent) and tests."""
    found: list[dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["section"]
    return found


def promises(document: str) -> str:
    """The document with new tables."""
    return document.partition(BEGIN)[0] + BEGIN + "".join(line for section in sections() for line in _lines(section))


def _lines(section: dict[str, Any]) -> Iterator[str]:
    yield f"\n## {section['title']}\n"
    if text := section.get("text"):
        yield f"{text.strip()}\n\n"
    columns = [section["head"], *(["what happens"] if "happens" in section["row"][0] else []), "test"]
    yield f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    for row in section["row"]:
        tests = ", ".join(f"`{name}`" for name in row["tests"])
        yield f"| {' | '.join(filter(None, (row['what'], row.get('happens'), tests)))} |\n"
