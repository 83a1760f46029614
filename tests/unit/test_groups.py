"""Which worker of pytest-xdist gets which tests."""

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest

from tests.conftest import ByGroup

ENGINES = ["tests/engines/test_pull.py::a", "tests/engines/test_pull.py::b"]
CLUSTERS = ["tests/cluster/test_crd.py::a", "tests/cluster/test_crd.py::b"]
CHARTS = ["tests/charts/test_rights.py::a"]
LIGHT = [f"tests/component/test_light.py::{name}" for name in "abcdef"]
TESTS = [*ENGINES, *CLUSTERS, *CHARTS, *LIGHT]


@dataclass(eq=False)
class Worker:
    """What the scheduler sends to a worker."""

    gateway: Any = field(default_factory=Mock)
    shutting_down: bool = False
    tests: list[str] = field(default_factory=list)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.tests += [TESTS[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture
def workers() -> list[Worker]:
    return [Worker(), Worker(), Worker()]


@pytest.fixture
def scheduler(workers: list[Worker]) -> ByGroup:
    found = ByGroup(Mock(**{"getvalue.return_value": ["3*popen"], "option.loadscopereorder": False}))
    for worker in workers:
        found.add_node(worker)
        found.add_node_collection(worker, TESTS)
    found.schedule()
    return found


def test_the_third_worker_waits_while_two_groups_run(scheduler: ByGroup, workers: list[Worker]) -> None:
    first, second, third = workers
    assert (first.tests, third.tests) == (ENGINES + CHARTS, [])
    assert second.tests == [*CLUSTERS, LIGHT[0]]
    for test in CLUSTERS:
        scheduler.mark_test_complete(second, TESTS.index(test))
    assert third.tests, "one group is left"


def test_every_test_goes_to_one_worker(scheduler: ByGroup, workers: list[Worker]) -> None:
    done: set[str] = set()
    while len(done) < len(TESTS):
        worker, test = next((each, test) for each in workers for test in each.tests if test not in done)
        scheduler.mark_test_complete(worker, TESTS.index(test))
        done.add(test)
    assert sorted(test for worker in workers for test in worker.tests) == sorted(TESTS)
    assert all(worker.shutting_down for worker in workers)
