"""What holds for every test."""

import os
from collections.abc import Generator
from typing import Final

import pytest

REAL_TIME = {
    **dict.fromkeys(("tests/dashboards/", "tests/charts/", "tests/cluster/", "tests/component/", "tests/engines/"), 2),
    **dict.fromkeys(("tests/images/", "tests/unit/operator/", "tests/unit/proxy/", "tests/unit/sim/"), 1),
}
"""How often tests whose pace is not their own are run again: engines, clusters, containers, sockets under load."""


CLUSTERS_END_WITHIN: Final = 400.0
"""Seconds. The clusters of a session end in the teardown of its last test, whatever that is about."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Give the last test the time that the end of the clusters may take, unless it has more; a soak ends by itself."""
    if not session.items:
        return
    last = session.items[-1]
    own = last.get_closest_marker("timeout")
    if not last.get_closest_marker("soak") and (own is None or own.args[0] < CLUSTERS_END_WITHIN):
        last.add_marker(pytest.mark.timeout(CLUSTERS_END_WITHIN))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test in real time that fails is run again, and the summary names it: a busy machine is no defect.

    A soak is not: what it looks for is rare. A test that takes minutes says itself how often.
    """
    for item in items:
        if item.get_closest_marker("soak") or item.get_closest_marker("flaky"):
            continue
        for folder, reruns in REAL_TIME.items():
            if item.nodeid.startswith(folder):
                item.add_marker(pytest.mark.flaky(reruns=reruns))


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
