"""The rows of docs/failure-matrix.md, from the tables of this folder."""

from functools import cache
from typing import Final

from tests.failure_matrix.row import Row
from tests.failure_matrix.table import TABLES, engine_rows, scenario_rows

SCENARIOS: Final = ("clients", "ejection", "processes", "limits", "busy", "families", "agents", "peers")


@cache
def fault_rows() -> tuple[Row, ...]:
    """The rows in which an engine fails: tests/component/handoff/test_failures.py runs each of them."""
    return (*engine_rows(TABLES / "engines.txt"), *engine_rows(TABLES / "mooncake.txt", prefix="mooncake-"))


@cache
def matrix() -> tuple[Row, ...]:
    """Every row. Those of the scenarios have tests of their own."""
    scenarios = (row for name in SCENARIOS for row in scenario_rows(TABLES / f"{name}.txt"))
    return (*fault_rows(), *scenarios)
