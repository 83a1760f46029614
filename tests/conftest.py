"""Rules for every test: which share one worker, how long the last may take, how failures show; no skips in CI."""

import gc
import json
import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_timeout import Settings
from xdist.scheduler import LoadScopeScheduling

from tests import soak_entries
from tests.group_end import end_group

CLUSTERS_END_WITHIN: Final = 400.0
"""Seconds. The clusters of a group end in the teardown of its last test, whatever that test is about."""
LIGHT: Final = (
    *("cluster/test_connectors.py", "cluster/test_broken_setups.py", "cluster/test_node.py", "cluster/test_down.py"),
    *("cluster/test_pod_answers.py", "cluster/test_bench.py"),
)
"""Files of GROUPS without a working real engine; half of two cores are idle beside them. They end their group."""
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "engines and node": ("engines/", "images/", "cluster/test_tiny.py", *LIGHT),
    "control plane": ("cluster/",),
    "campaigns": ("component/soak/test_campaign.py",),
    "charts": ("charts/",),
}
"""Group -> the files of its tests, below tests/; the first group that fits counts. The longest group comes first.

Real engines run in one group, one set at a time, those in pods too: an idle engine with NIXL keeps most of a core busy,
and beside such a set the tests of engines in pods take four times as long. There is one cluster of each size.
"""
BUSY: Final = 2
"""Workers that run GROUPS."""
CORES: Final = len(os.sched_getaffinity(0))
AUTOGROUPS: Final = Path("/proc/sys/kernel/sched_autogroup_enabled")
"""While it is 1, Linux shares the cores between sessions (sched(7)), and niceness counts within one session only."""
OLD: Final = 4
"""After more collections of the middle generation, a full one precedes the next test; Python waits for eleven."""
GOGC: Final = "400"
"""Kubernetes' programs use a seventh less CPU time in the chart's tests than with Go's default of 100."""
SHARES_FIXTURE: Final = frozenset({"component/site/test_browser.py", "component/test_failure_rows.py"})
"""Files of component tests that share a costly fixture."""

os.environ.setdefault("PDX_COMPILED", "0")  # tests replace parts of hot modules, which those of `make compiled` forbid


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--times FILE` adds a line of JSON for each phase of each test; `python -m scripts.test_times` reads them."""
    parser.addoption("--times", metavar="FILE", help="append the duration of each phase of each test to FILE")


class Times:
    """Writes what each phase of a test has taken, in the process that all reports come to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line = {"test": report.nodeid, "phase": report.when, "start": report.start, "seconds": report.duration}
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({**line, "outcome": report.outcome}) + "\n")


class Failures:
    """Prints where each test has failed, at once: a run that is ended from outside never prints its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            minute = time.strftime("%H:%M")
            terminal.write_line(f"\n{minute} {report.nodeid} failed in {report.when}: {line_of(report.longreprtext)}")


def line_of(text: str) -> str:
    """Return the line of an explanation that says what went wrong, at most 300 characters of it."""
    lines = text.splitlines()
    explained = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return next(iter(explained or lines[-1:]), "")[:300]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Collected())
    os.environ.setdefault("GOGC", GOGC)
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Failures(config))
    path = config.getoption("--times")
    if path:
        config.pluginmanager.register(Times(Path(path)))
    with suppress(OSError):
        before = AUTOGROUPS.read_text(encoding="ascii")
        _let_niceness_count("0")
        config.add_cleanup(partial(_let_niceness_count, before))


def _let_niceness_count(autogroups: str) -> None:
    """Real engines are nice, and most have sessions of their own. Without root the setting stays as it is."""
    with suppress(OSError):
        AUTOGROUPS.write_text(autogroups, encoding="ascii")


def group_of(nodeid: str) -> str:
    """The tests of one group run one after the other, in one worker. Most component tests are their own group."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    for group, places in GROUPS.items():
        if path.startswith(places):
            return group
    return nodeid if path.startswith("component/") and path not in SHARES_FIXTURE else path


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Gives workers whole groups, in the order of the tests.

    Two of the GROUPS keep two cores busy; the other tests and the LIGHT ones mostly wait. So on two cores, the third
    worker waits until at most one worker keeps a core busy, and the others until none does: real engines are nice, and
    would starve beside them.
    (pytest-xdist's own groups, `loadgroup`, need a private attribute that pytest 9.2 removed.)
    """

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        group = group_of(self.registered_collections[node][item_index])
        if all(units[group].values()):
            del units[group]  # if the worker crashed, it would run again
        for waiting in self.nodes[BUSY:]:
            for _ in range(2):  # a worker runs a test when it has the next one
                self._reschedule(waiting)

    def _assign_work_unit(self, node: Any) -> None:
        if node not in self.registered_collections:
            return  # it replaces a worker that crashed, and still collects
        if self.workqueue and not self._must_wait(self.nodes.index(node)):
            super()._assign_work_unit(node)

    def _must_wait(self, place: int) -> bool:
        """Whether the cores are too busy for the worker at this place in the list of workers."""
        if place < BUSY or CORES > BUSY:
            return False
        busy = sum(any(map(_is_heavy, _undone(units))) for units in self.assigned_work.values())
        return busy >= max(1, 2 * BUSY - place) or not GROUPS.keys().isdisjoint(self.workqueue)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    """Distribute the tests by their groups."""
    return ByGroup(config, log)


def _undone(units: Mapping[str, Mapping[str, bool]]) -> Iterator[str]:
    """The tests of a worker's groups that have not run yet."""
    return (nodeid for tests in units.values() for nodeid, done in tests.items() if not done)


def _is_heavy(nodeid: str) -> bool:
    """Whether a test keeps a core busy."""
    return group_of(nodeid) in GROUPS and not nodeid.removeprefix("tests/").startswith(LIGHT)


def _rank(item: pytest.Item) -> tuple[int, int]:
    """The place of a test in the run: its group, and its file's place within the group."""
    group = group_of(item.nodeid)
    if group not in GROUPS:
        return len(GROUPS) + ("tests/unit/" in item.nodeid), 0
    path = item.nodeid.removeprefix("tests/")
    return list(GROUPS).index(group), next(i for i, place in enumerate(GROUPS[group]) if path.startswith(place))


_COLLECTED: Final = pytest.StashKey[dict[str, bool]]()


class Collected:
    """Keeps the IDs of all tests that were found, before `-m` and `-k` deselect some, and whether each always runs."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.stash[_COLLECTED] = {item.nodeid: item.get_closest_marker("soak") is None for item in items}


@pytest.fixture(scope="session")
def found_tests(pytestconfig: pytest.Config) -> dict[str, bool]:
    """The IDs of all tests that were found, and whether each runs in `make test` (else in `make soak` only)."""
    return pytestconfig.stash[_COLLECTED]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude what the collection of all tests has left from garbage collections, which take seconds otherwise."""
    found = session.config.stash[_COLLECTED]
    soak_entries.register(session.config, found, [item.nodeid for item in session.items])
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Collect garbage before a test rather than in it, and exclude what is left from later collections.

    A collection over all objects takes a second, in which the engines and the gateway of this process do nothing.
    """
    if item.get_closest_marker("alone") or item.get_closest_marker("paced") or gc.get_count()[2] > OLD:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the groups that take longest first."""
    items.sort(key=_rank)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """End what a group shares after its last test, and give that test the time that this may take."""
    is_last = nextitem is None or group_of(nextitem.nodeid) != group_of(item.nodeid)
    if is_last and group_of(item.nodeid) in GROUPS and item.get_closest_marker("soak") is None:
        hooks = item.config.pluginmanager.hook
        hooks.pytest_timeout_cancel_timer(item=item)
        settings = Settings(CLUSTERS_END_WITHIN, "signal", func_only=False, disable_debugger_detection=False)
        hooks.pytest_timeout_set_timer(item=item, settings=settings)
    try:
        yield
    finally:
        if is_last:
            end_group()


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
