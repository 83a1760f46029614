"""Rules for every test: which tests share one worker, how long the last one may take, and no skips under CI."""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from pytest_timeout import Settings

CLUSTERS_END_WITHIN: Final = 400.0
"""Seconds. The clusters of a worker end in the teardown of its last test, whatever that test is about."""
FIRST: Final = (
    "engines/nixl",
    "node",
    "engines/others",
    "control plane",
    "component/soak",
    "charts",
    "boards/test_live",
    "boards/test_fires",
)
"""The groups that take longest start first; everything else fills the workers beside and after them."""
FIXTURE_GROUPS: Final = {
    "node_cluster": "node",
    "doomed": "node",
    "images": "node",  # both build images in one store
    "control_plane": "control plane",
    "simulated_cluster": "control plane",
}
NIXL_FILES: Final = ("test_aggregated.py", "test_pull.py", "test_push.py", "test_up.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--times FILE` adds a line of JSON for each phase of each test; `python -m scripts.test_times` reads them."""
    parser.addoption("--times", metavar="FILE", help="append the duration of each phase of each test to FILE")


class Times:
    """Writes what each phase of a test has taken, in the process that all reports come to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("@")[0] if "@" in report.nodeid.rpartition("]")[2] else report.nodeid
        line = {"test": name, "phase": report.when, "start": report.start, "seconds": report.duration}
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({**line, "outcome": report.outcome}) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--times")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Times(Path(path)))


def group_of(item: pytest.Item) -> str:
    """The tests of one group run one after the other, in one worker. Without a name a test may run anywhere.

    There is a group for each shared resource: one cluster of each size, and one set of engines with NIXL at a time,
    because an idle engine with NIXL keeps a core busy.
    """
    path = item.path.relative_to(Path(__file__).parent)
    if path.parts[0] == "engines":
        return "engines/nixl" if path.name in NIXL_FILES else "engines/others"
    if path.parts[0] == "charts":
        return "charts"
    for name in getattr(item, "fixturenames", ()):
        if name in FIXTURE_GROUPS:
            return FIXTURE_GROUPS[name]
    alone = path.parts[0] == "component" and path.name != "test_failure_rows.py"
    return "" if alone else str(path)


def _rank(item: pytest.Item) -> int:
    group = group_of(item) or str(item.path.relative_to(Path(__file__).parent))
    name = next((first for first in FIRST if group.startswith(first)), "")
    return FIRST.index(name) if name else len(FIRST) + group.startswith("unit")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Name each test's group and put the long groups first. xdist gives workers whole groups, in this order."""
    for item in items:
        if group := group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))
    yield
    items.sort(key=_rank)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Give the last test of a process the time that the end of its clusters may take."""
    if nextitem is None and item.get_closest_marker("soak") is None:
        hooks = item.config.pluginmanager.hook
        hooks.pytest_timeout_cancel_timer(item=item)
        settings = Settings(CLUSTERS_END_WITHIN, "signal", func_only=False, disable_debugger_detection=False)
        hooks.pytest_timeout_set_timer(item=item, settings=settings)


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
