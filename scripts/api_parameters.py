"""docs/api.md: keeps its prose and generates the tables of parameters from tests/api_parameters.txt."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.api_document import Row, sections

BEGIN: Final = "<!-- Written by `make generate` from tests/api_parameters.txt. -->\n"
_HEAD: Final = "| parameter | of | verdict | to P | what changes |\n|---|---|---|---|---|\n"


def api_parameters(document: str) -> str:
    """The document with new tables."""
    tables = (f"\n### {title}\n{_HEAD}{''.join(_lines(rows))}" for title, rows in sections().items())
    return document.partition(BEGIN)[0] + BEGIN + "".join(tables)


def _lines(rows: list[Row]) -> Iterator[str]:
    """One line for all parameters about which the same is true; a value is shown only where it decides."""
    verdicts: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for row in rows:
        verdicts[row.name] |= {(row.verdict, row.to_prefill)}
    noted = {(row.name, row.of, row.verdict) for row in rows if row.note}
    merged: dict[tuple[str, ...], dict[str, None]] = {}
    for row in rows:
        if not row.note and len(verdicts[row.name]) == 1 and (row.name, row.of, row.verdict) in noted:
            continue
        value = f": {json.dumps(row.example[row.name])}" if len(verdicts[row.name]) > 1 else ""
        merged.setdefault((row.of, row.verdict, row.to_prefill, row.note), {})[f"`{row.name}{value}`"] = None
    for key, names in merged.items():
        yield f"| {' | '.join((', '.join(names), *key))} |\n"
