"""Which worker of pytest-xdist gets which tests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest

from tests import conftest
from tests.conftest import ByGroup
from tests.documents import ROOT
from tests.group_end import at_group_end, end_group

ENGINES = [f"tests/engines/test_pull.py::{name}" for name in "abcde"]
NODE = [f"tests/cluster/test_node.py::{name}" for name in "abc"]
CLUSTERS = [f"tests/cluster/test_crd.py::{name}" for name in "abc"]
CHARTS = ["tests/charts/test_rights.py::a"]
LIGHT = [f"tests/component/test_light.py::{name}" for name in "abcdefgh"]
TESTS = [*ENGINES, *CLUSTERS, *CHARTS, *LIGHT]


@dataclass(eq=False)
class Worker:
    """A worker runs a test when it has the next one, or when no more will come."""

    gateway: Any = field(default_factory=Mock)
    shutting_down: bool = False
    queue: list[int] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        return len(self.queue) > 1 or (self.shutting_down and bool(self.queue))


@dataclass
class Run:
    """A run of these tests."""

    tests: list[str]
    workers: list[Worker]
    scheduler: ByGroup

    def step(self, worker: Worker) -> None:
        index = worker.queue.pop(0)
        worker.done.append(self.tests[index])
        self.scheduler.mark_test_complete(worker, index)

    def steps(self) -> Iterator[Worker]:
        """Let the workers take turns until none can run a test."""
        while ready := [worker for worker in self.workers if worker.can_run]:
            for worker in ready:
                if worker.can_run:
                    self.step(worker)
                    yield worker

    @property
    def done(self) -> list[str]:
        return sorted(test for worker in self.workers for test in worker.done)


def begin(workers: int, tests: list[str]) -> Run:
    config = Mock(**{"getvalue.return_value": [f"{workers}*popen"], "option.loadscopereorder": False})
    run = Run(tests, [Worker() for _ in range(workers)], ByGroup(config))
    for worker in run.workers:
        run.scheduler.add_node(worker)
        run.scheduler.add_node_collection(worker, tests)
    run.scheduler.schedule()
    return run


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "CORES", 2)


def test_the_third_worker_waits_while_two_run_groups() -> None:
    run = begin(3, TESTS)
    first, second, third = run.workers
    while second.done != [*CLUSTERS, *CHARTS]:
        assert not third.queue
        run.step(second)
    assert third.can_run, "one runs groups"
    assert first.queue


def test_the_fourth_worker_waits_while_one_runs_groups() -> None:
    run = begin(4, [*TESTS, *(f"{test}-too" for test in LIGHT)])
    first, second, third, fourth = run.workers
    while second.done != [*CLUSTERS, *CHARTS]:
        run.step(second)
    assert third.can_run
    while first.done != ENGINES:
        assert not fourth.queue
        run.step(first)
    assert fourth.queue, "none runs groups"


def test_the_fourth_worker_does_not_wait_for_tests_without_real_engines() -> None:
    run = begin(4, [*ENGINES, *NODE, *CLUSTERS, *CHARTS, *(f"{test}-too" for test in LIGHT), *LIGHT])
    first, second, _, fourth = run.workers
    while second.done != [*CLUSTERS, *CHARTS]:
        run.step(second)
    while first.done != ENGINES:
        assert not fourth.queue
        run.step(first)
    assert fourth.queue
    assert first.queue


@pytest.mark.parametrize("mark", ["alone", "paced"])
def test_make_names_where_marked_tests_are(mark: str) -> None:
    (line,) = re.findall(rf"^{mark.upper()} := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if f"pytest.mark.{mark}" in path.read_text()]
    places = [ROOT / place for place in line.split()]
    assert [path for path in marked if not any(path.is_relative_to(place) for place in places)] == []
    assert all(any(path.is_relative_to(place) for path in marked) for place in places)


def test_with_more_cores_no_worker_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "CORES", 3)
    assert begin(3, TESTS).workers[2].queue


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    "tests", [TESTS, LIGHT, ENGINES, [*ENGINES, *LIGHT], CHARTS], ids=["all", "light", "engines", "both", "one"]
)
def test_every_test_runs_once(workers: int, tests: list[str]) -> None:
    run = begin(workers, tests)
    for _ in run.steps():
        pass
    assert run.done == sorted(tests)
    assert all(worker.shutting_down for worker in run.workers)


def test_a_worker_that_replaces_another_gets_tests_when_it_has_collected() -> None:
    run = begin(3, TESTS)
    first, second, third = run.workers
    run.step(second)
    crashed = run.scheduler.remove_node(second)
    assert crashed == TESTS[second.queue[0]]
    replacement = Worker()
    run.scheduler.add_node(replacement)
    run.step(first)
    assert not replacement.queue, "it still collects"
    run.scheduler.add_node_collection(replacement, TESTS)
    run.scheduler.schedule()
    run.workers = [first, third, replacement]
    for _ in run.steps():
        pass
    assert set(run.done) | set(second.done) == set(TESTS)


@pytest.mark.parametrize(
    ("after", "ends"), [("tests/cluster/test_node.py::b", False), ("tests/cluster/test_crd.py::a", True), ("", True)]
)
def test_clusters_end_with_the_last_test_of_their_group(after: str, *, ends: bool) -> None:
    seen: list[str] = []
    at_group_end(lambda: seen.append("ended"))
    item, following = (Mock(nodeid=nodeid) for nodeid in ("tests/cluster/test_node.py::a", after))
    item.get_closest_marker.return_value = None
    teardown = conftest.pytest_runtest_teardown(item, following if after else None)
    next(teardown)
    assert not seen, "fixtures of the test end first"
    assert item.config.pluginmanager.hook.pytest_timeout_set_timer.called is ends
    assert next(teardown, None) is None
    assert bool(seen) is ends
    end_group()
    assert seen == ["ended"]
