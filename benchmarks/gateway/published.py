"""`python -m benchmarks.gateway.published`: write the newest published result into the pages that state it.

A test compares the pages with the result, so that no page keeps old numbers.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.gateway.report import HERE

ROOT: Final = HERE.parents[1]
_RESULT: Final = re.compile(r"\d{4}-\d\d-\d\d")
_BEGIN: Final = "<!-- begin of the result: python -m benchmarks.gateway.published -->"
_END: Final = "<!-- end of the result -->"
_CONNECTIONS: Final = (8, 64)

Row = Mapping[str, Any]


def newest(folder: Path = HERE / "results") -> Mapping[str, Any]:
    """Return the newest result that is a whole table."""
    path = max(path for path in folder.glob("*.json") if _RESULT.fullmatch(path.stem))
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


def texts(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what each page states, by the page's path."""
    rows: Mapping[str, Row] = {row["row"]: row for row in document["rows"]}
    page = "benchmarks/gateway/README.md"
    return {"README.md": _readme(document, rows), "docs/faq.md": _faq(document, rows), page: _page(document, rows)}


def _readme(document: Mapping[str, Any], rows: Mapping[str, Row]) -> str:
    cpu = document["machine"]["cpu"].replace("(R)", "")
    compared = _comparisons(rows)
    machine = f"[one core of a virtual machine](benchmarks/gateway/README.md) ({cpu})"
    return f"* {document['date']}, {machine}, simulated engines.\n  {compared}."


def _page(document: Mapping[str, Any], rows: Mapping[str, Row]) -> str:
    compared = _comparisons(rows)
    ttft = rows["ttft-64-p50"]["medians"]["pdx"]
    first = f"{document['date']}, one core, simulated engines. {compared}."
    return f"{first}\nIt adds {ttft:.2f} ms (p50) to TTFT with 64 streams."


def _faq(document: Mapping[str, Any], rows: Mapping[str, Row]) -> str:
    times = [rows[f"ttft-64-{share}"]["medians"]["pdx"] for share in ("p50", "p99")]
    cpu = [rows[f"cpu-settled-{connections}"]["medians"]["pdx-defaults"] for connections in _CONNECTIONS]
    return "\n".join(
        [
            _conditions(document, "../benchmarks/gateway/README.md"),
            f"With 64 streams of 50 tokens/s, it added {times[0]:.2f} ms (p50) and {times[1]:.2f} ms (p99) to TTFT.",
            f"A completion of 4 kB took {cpu[0]:.2f} ms of CPU with 8 connections, and {cpu[1]:.2f} ms with 64.",
        ]
    )


def _conditions(document: Mapping[str, Any], page: str) -> str:
    commit = document["versions"]["pdx-defaults"]
    return f"On {document['date']}, the compiled gateway of commit {commit} [ran on one core]({page})."


def _comparisons(rows: Mapping[str, Row]) -> str:
    compared = " and ".join(_comparison(rows, connections) for connections in _CONNECTIONS)
    return f"Compared with the best Rust router, PDX was {compared}"


def _comparison(rows: Mapping[str, Row], connections: int) -> str:
    row = rows[f"rps-settled-{connections}"]
    own = row["medians"]["pdx-defaults"]
    share = own / row["medians"][row["reference"]] - 1
    faster = "faster" if share > 0 else "slower"
    return f"{abs(share):.0%} {faster} with {connections} connections ({own:,.0f} requests/s)"


def stated(page: str) -> str:
    """Return what a page states."""
    return page.split(_BEGIN)[1].split(_END)[0].strip()


def with_result(page: str, text: str) -> str:
    """Return the page with this text between its marks."""
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}"


def main() -> int:
    """Write the pages."""
    for name, text in texts(newest()).items():
        path = ROOT / name
        path.write_text(with_result(path.read_text(), text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
