"""The tables of the failure matrix are read whole, and an error in one names its line."""

from pathlib import Path

import pytest

from tests.failure_matrix.row import Phase
from tests.failure_matrix.rows import SCENARIOS
from tests.failure_matrix.table import ENGINE_COLUMNS, SCENARIO_COLUMNS, TABLES, engine_rows, scenario_rows

ENGINE_HEAD = " ".join(ENGINE_COLUMNS)
SCENARIO_HEAD = " ".join(SCENARIO_COLUMNS)
ROW = "slow answer nixl both right split - -"
TEXTS = ("    fails:    D answers", "        slowly", "    test:     test_slow.py::", "        test_slow")


def _table(folder: Path, *lines: str) -> Path:
    path = folder / "table.txt"
    path.write_text("\n".join(("# a comment", *lines)))
    return path


def test_every_table_is_read_and_fits_on_a_screen() -> None:
    assert {path.stem for path in TABLES.iterdir()} == {"engines", "mooncake", *SCENARIOS}
    lines = [line for path in TABLES.iterdir() for line in path.read_text().splitlines()]
    assert max(map(len, lines)) <= 120


def test_a_long_text_goes_on_in_lines_that_are_indented_further(tmp_path: Path) -> None:
    (row,) = scenario_rows(_table(tmp_path, SCENARIO_HEAD, ROW, *TEXTS))
    assert (row.id, row.phase) == ("slow", Phase.ANSWER)
    assert (row.fails, row.test) == ("D answers slowly", "test_slow.py::test_slow")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("prefill-500 other push both right split status - 2/1/0 -", "10 values for 11 columns"),
        ("gateway-500 other push both right split status - 2/1/0 - -", "id: 'gateway' is none of no, prefill"),
        ("prefill-50 other push both right split status - 2/1/0 - -", "id: '50' begins with none of 500, 503"),
        ("prefill-500 others push both right split status - 2/1/0 - -", "ends: 'others' is none of -, other"),
        ("prefill-500 other pushed both right split status - 2/1/0 - -", "orders: 'pushed' is none of all, nixl"),
        ("prefill-500 other push both right splits status - 2/1/0 - -", "outcomes: 'splits' is none of"),
        ("prefill-500 other push both right split status sold|none 2/1/0 - -", "settled: 'sold' is none of none"),
        ("prefill-500 other push both right split status - 2/1/0 - at-once", "with: 'at-once' is none of short"),
    ],
)
def test_an_error_in_a_line_names_it(line: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"table\.txt:3: ") as caught:
        list(engine_rows(_table(tmp_path, ENGINE_HEAD, line)))
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (("id phase", ROW), "table.txt:2: the head is not 'id phase orders"),
        ((SCENARIO_HEAD, TEXTS[0]), "table.txt:3: there is no row above"),
        ((SCENARIO_HEAD, ROW, "    falls: D"), "table.txt:3: text: 'falls' is none of fails, client"),
        ((SCENARIO_HEAD, ROW, *TEXTS[:2]), "table.txt:3: slow: a text is missing: test"),
    ],
)
def test_an_error_in_the_structure_names_the_row(lines: tuple[str, ...], error: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="table") as caught:
        list(scenario_rows(_table(tmp_path, *lines)))
    assert error in str(caught.value)
