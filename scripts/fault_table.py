"""docs/observability.md: keeps its prose and generates the table of alerts from tests/dashboards/faults.py."""

from typing import Final

from scripts.marked import with_part
from tests.dashboards.faults import table

BEGIN: Final = "<!-- Written by `make generate` from tests/dashboards/faults.py. -->\n"


def fault_table(document: str) -> str:
    """Return the document with a new table."""
    return with_part(document, BEGIN, f"\n{table()}\n")
