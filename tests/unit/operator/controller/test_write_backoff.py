"""When a write that did not last is repeated, and what is reported about it."""

import itertools
from dataclasses import replace

import pytest

from pdx_api.names import ANNOTATION_APPLIED
from pdx_operator.controller.applier import ApplyResult, Drift
from pdx_operator.controller.intervals import Intervals
from pdx_operator.controller.write_backoff import WriteBackoff
from pdx_operator.kube.resources import ChildKey
from pdx_operator.plan.operations import Apply, Problem, RevertedChange
from pdx_operator.plan.reconcile_plan import Plan

CHILD = ChildKey("Service", "s")
PROBLEM = Problem(CHILD, "invalid")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backoff(clock: Clock) -> WriteBackoff:
    return WriteBackoff(Intervals(retry=1.0, retry_max=8.0), clock, lambda: 0.5)


def _plan(digest: str = "a", path: str = "spec.x", version: str = "1") -> Plan:
    metadata = {"name": CHILD.name, "annotations": {ANNOTATION_APPLIED: digest}}
    return Plan(None, applies=(Apply({"kind": CHILD.kind, "metadata": metadata}, "u", path, version),))


def _written(plan: Plan) -> ApplyResult:
    return ApplyResult(updated=plan.applies)


def _may(backoff: WriteBackoff, plan: Plan, generation: int = 1) -> bool:
    return backoff.filter(plan, generation).plan.has_writes


def test_a_reverted_write_is_repeated_ever_more_rarely(backoff: WriteBackoff, clock: Clock) -> None:
    plan, times = _plan(), []
    for _ in range(400):
        if _may(backoff, plan):
            backoff.record(plan, _written(plan))
            times.append(clock.now - 1000)
        clock.now += 0.1
    assert [round(later - time) for time, later in itertools.pairwise(times)][:6] == [1, 2, 4, 8, 8, 8]


def test_an_update_is_reported_once_per_desired_state(backoff: WriteBackoff, clock: Clock) -> None:
    for plan, reported in ((_plan(), True), (_plan(), False), (_plan(path="spec.y"), True), (_plan("b"), True)):
        assert bool(backoff.record(plan, _written(plan)).updated) is reported


def test_a_new_desired_state_does_not_wait(backoff: WriteBackoff) -> None:
    backoff.record(_plan(), _written(_plan()))
    backoff.filter(_plan(), 1)
    backoff.record(_plan(), _written(_plan()))
    assert not _may(backoff, _plan())
    assert _may(backoff, _plan("b"))
    assert _may(backoff, _plan(), generation=2)


def test_reverted_changes_are_reported_until_they_stop(backoff: WriteBackoff, clock: Clock) -> None:
    _may(backoff, _plan())
    for count in range(3):
        assert bool(backoff.filter(Plan(None), 1).reverted) is (count > 2)
        backoff.record(_plan(), _written(_plan()))
        clock.now += 10
    filtered = backoff.filter(Plan(None), 1)
    assert filtered.reverted == (RevertedChange(CHILD, "spec.x"),)
    assert filtered.wait == 6.0
    clock.now += 6
    filtered = backoff.filter(Plan(None), 1)
    assert (filtered.reverted, filtered.wait) == ((), None)


def test_a_rejected_write_is_no_reverted_change(backoff: WriteBackoff, clock: Clock) -> None:
    _may(backoff, _plan())
    for _ in range(5):
        backoff.record(_plan(), ApplyResult(problems=(PROBLEM,)))
        filtered = backoff.filter(_plan(), 1)
        assert (filtered.plan.has_writes, filtered.problems, filtered.reverted) == (False, (PROBLEM,), ())
        assert filtered.wait is not None
        clock.now += filtered.wait
        assert _may(backoff, _plan())
    backoff.record(_plan(), _written(_plan()))
    filtered = backoff.filter(Plan(None), 1)
    assert (filtered.problems, filtered.reverted) == ((), ())


def test_drift_after_apply_waits_for_a_change(backoff: WriteBackoff, clock: Clock) -> None:
    plan = _plan(version="2")
    _may(backoff, plan)
    backoff.record(_plan(), ApplyResult(drifts=(Drift(CHILD, "spec.x", "2"),)))
    clock.now += 10_000
    filtered = backoff.filter(plan, 1)
    assert (filtered.plan.has_writes, filtered.reverted, filtered.wait) == (
        False,
        (RevertedChange(CHILD, "spec.x"),),
        None,
    )
    for other in (_plan(version="3"), _plan(path="spec.y", version="2"), _plan("b", version="2")):
        assert _may(backoff, other)
    # Without a difference the record of the drift is dropped.
    assert backoff.filter(Plan(None), 1).reverted == ()
    assert _may(backoff, plan)


def test_a_creation_is_reported_once(backoff: WriteBackoff) -> None:
    plan = replace(_plan(path=""))
    assert backoff.record(plan, ApplyResult(created=(CHILD,))).created
    assert not backoff.record(plan, ApplyResult(created=(CHILD,))).created
