"""What holds for every test."""

import os
from collections.abc import Generator

import pytest

REAL_PARTS = ("tests/charts/", "tests/cluster/", "tests/engines/")
"""Tests against engines, clusters and containers, whose pace is not the tests'."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test with real parts that fails is run once more, and the summary says so: a busy machine is no defect."""
    for item in items:
        if item.nodeid.startswith(REAL_PARTS):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI a part that this machine cannot run is a failure: a skip would hide it."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
    return report
