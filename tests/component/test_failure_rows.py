"""Each row of docs/failures.md has a test that pytest collects, and each of those tests has a row."""

import subprocess
import sys

import pytest

from scripts.failures import matrix
from tests.documents import ROOT

CASES = [case for row in matrix() for case in row.cases()]
PLACES = ("tests/component", "tests/unit/proxy")


@pytest.fixture(scope="module")
def collected(found_tests: frozenset[str]) -> set[str]:
    """Every test that pytest finds, below tests/. A run of a few files alone has not found them all."""
    files = {str(path.relative_to(ROOT)) for place in PLACES for path in (ROOT / place).rglob("test_*.py")}
    every = found_tests if files <= {test.partition("::")[0] for test in found_tests} else _collect()
    return {test.removeprefix("tests/") for test in every}


def _collect() -> frozenset[str]:
    """Every test in these places, those of `make soak` too, found by another pytest."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *PLACES]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return frozenset(line for line in found.splitlines() if "::" in line)


def test_every_row_has_a_test(collected: set[str]) -> None:
    assert sorted({case.test for case in CASES} - collected) == []


def test_every_test_is_one_rows(collected: set[str]) -> None:
    rows = {test for test in collected if test.startswith("component/handoff/test_failures.py::test_row[")}
    assert rows == {case.test for case in CASES if case.row.runs}
