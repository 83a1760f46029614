"""Each row of docs/failure-matrix.md has a test that pytest collects, and each of those tests has a row."""

import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.failure_matrix.rows import matrix

CASES = [case for row in matrix() for case in row.cases()]
PLACES = ("tests/component", "tests/unit/proxy")


@pytest.fixture(scope="module")
def collected(found_tests: dict[str, bool]) -> dict[str, bool]:
    """Every test that pytest finds, and whether `make test` runs it. A run of a few files has not found them all."""
    files = {str(path.relative_to(ROOT)) for place in PLACES for path in (ROOT / place).rglob("test_*.py")}
    every = found_tests if files <= {test.partition("::")[0] for test in found_tests} else _collect()
    return {test.removeprefix("tests/"): always for test, always in every.items()}


def _collect() -> dict[str, bool]:
    """Every test in these places, found by another pytest."""
    always = _ids("not soak")
    return {test: test in always for test in _ids("")}


def _ids(marks: str) -> frozenset[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, "-p", "no:cacheprovider", *PLACES]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return frozenset(line for line in found.splitlines() if "::" in line)


def test_every_case_has_a_test(collected: dict[str, bool]) -> None:
    assert sorted({case.test for case in CASES} - collected.keys()) == []


def test_every_row_runs_always(collected: dict[str, bool]) -> None:
    assert {case.row.id for case in CASES} == {case.row.id for case in CASES if collected.get(case.test)}


def test_every_test_is_one_rows(collected: dict[str, bool]) -> None:
    rows = {test for test in collected if test.startswith("component/handoff/test_failures.py::test_row[")}
    assert rows == {case.test for case in CASES if case.row.runs}
