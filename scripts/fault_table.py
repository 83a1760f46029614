"""docs/observability.md: keeps its prose and generates the table of alerts from tests/dashboards/faults.py."""

from typing import Final

from tests.dashboards.faults import table

BEGIN: Final = "<!-- Written by `make generate` from tests/dashboards/faults.py. -->\n"
END: Final = "<!-- End of what `make generate` writes. -->\n"


def fault_table(document: str) -> str:
    """Return the document with a new table."""
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"
