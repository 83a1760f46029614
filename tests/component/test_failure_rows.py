"""Each row of docs/failures.md has a test that pytest collects, and each of those tests has a row."""

import subprocess
import sys

import pytest

from scripts.failures import matrix
from tests.documents import ROOT

CASES = [case for row in matrix() for case in row.cases()]


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """Every test that pytest finds, below tests/."""
    places = ["tests/component", "tests/unit/proxy"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *places]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return {line.removeprefix("tests/") for line in found.splitlines() if "::" in line}


def test_every_row_has_a_test(collected: set[str]) -> None:
    assert sorted({case.test for case in CASES} - collected) == []


def test_every_test_is_one_rows(collected: set[str]) -> None:
    rows = {test for test in collected if test.startswith("component/handoff/test_failures.py::test_row[")}
    assert rows == {case.test for case in CASES if case.row.runs}
