"""What is written again, when, and what is said of it: one child that is written and does not stay so."""

import itertools
from dataclasses import replace

import pytest

from pdx_api.names import ANNOTATION_APPLIED
from pdx_operator.app.settings import Intervals
from pdx_operator.controller.applier import Denied, Done, Problem
from pdx_operator.controller.write_backoff import Undone, WriteBackoff
from pdx_operator.kube.cache import ChildKey
from pdx_operator.plan.reconcile_plan import Change, Decision

CHILD = ChildKey("Service", "s")
PROBLEM = Problem(CHILD, "words")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def restraint(clock: Clock) -> WriteBackoff:
    return WriteBackoff(Intervals(retry=1.0, retry_most=8.0), clock, lambda: 0.5)


def _wish(wanted: str = "a", path: str = "spec.x", version: str = "1") -> Decision:
    metadata = {"name": CHILD.name, "annotations": {ANNOTATION_APPLIED: wanted}}
    return Decision(None, changes=(Change({"kind": CHILD.kind, "metadata": metadata}, "u", path, version),))


def _written(wish: Decision) -> Done:
    return Done(changed=wish.changes)


def _may(restraint: WriteBackoff, wish: Decision, generation: int = 1) -> bool:
    return restraint.sift(wish, generation).decision.writes


def test_what_is_undone_is_written_less_and_less_often(restraint: WriteBackoff, clock: Clock) -> None:
    wish, times = _wish(), []
    for _ in range(400):
        if _may(restraint, wish):
            restraint.note(wish, _written(wish))
            times.append(clock.now - 1000)
        clock.now += 0.1
    assert [round(later - time) for time, later in itertools.pairwise(times)][:6] == [1, 2, 4, 8, 8, 8]


def test_it_is_told_once_and_anew_when_something_else_is_wanted(restraint: WriteBackoff, clock: Clock) -> None:
    for wish, news in ((_wish(), True), (_wish(), False), (_wish(path="spec.y"), True), (_wish("b"), True)):
        assert bool(restraint.note(wish, _written(wish)).changed) is news


def test_another_wish_and_a_new_spec_do_not_wait(restraint: WriteBackoff) -> None:
    restraint.note(_wish(), _written(_wish()))
    restraint.sift(_wish(), 1)
    restraint.note(_wish(), _written(_wish()))
    assert not _may(restraint, _wish())
    assert _may(restraint, _wish("b"))
    assert _may(restraint, _wish(), generation=2)


def test_somebody_who_undoes_is_named_until_he_rests(restraint: WriteBackoff, clock: Clock) -> None:
    _may(restraint, _wish())
    for count in range(3):
        assert bool(restraint.sift(Decision(None), 1).undone) is (count > 2)
        restraint.note(_wish(), _written(_wish()))
        clock.now += 10
    sifted = restraint.sift(Decision(None), 1)
    assert sifted.undone == (Undone(CHILD, "spec.x"),)
    assert sifted.wait == 6.0
    clock.now += 6
    sifted = restraint.sift(Decision(None), 1)
    assert (sifted.undone, sifted.wait) == ((), None)


def test_what_is_refused_waits_and_stays_said_and_is_no_fight(restraint: WriteBackoff, clock: Clock) -> None:
    _may(restraint, _wish())
    for _ in range(5):
        restraint.note(_wish(), Done(problems=(PROBLEM,)))
        sifted = restraint.sift(_wish(), 1)
        assert (sifted.decision.writes, sifted.problems, sifted.undone) == (False, (PROBLEM,), ())
        assert sifted.wait is not None
        clock.now += sifted.wait
        assert _may(restraint, _wish())
    restraint.note(_wish(), _written(_wish()))
    sifted = restraint.sift(Decision(None), 1)
    assert (sifted.problems, sifted.undone) == ((), ())


def test_what_is_denied_is_written_when_something_changes_and_not_before(restraint: WriteBackoff, clock: Clock) -> None:
    wish = _wish(version="2")
    _may(restraint, wish)
    restraint.note(_wish(), Done(denied=(Denied(CHILD, "spec.x", "2"),)))
    clock.now += 10_000
    sifted = restraint.sift(wish, 1)
    assert (sifted.decision.writes, sifted.undone, sifted.wait) == (False, (Undone(CHILD, "spec.x"),), None)
    for other in (_wish(version="3"), _wish(path="spec.y", version="2"), _wish("b", version="2")):
        assert _may(restraint, other)
    # It came to be as it should.
    assert restraint.sift(Decision(None), 1).undone == ()
    assert _may(restraint, wish)


def test_what_is_made_is_news_once(restraint: WriteBackoff) -> None:
    wish = replace(_wish(path=""))
    assert restraint.note(wish, Done(made=(CHILD,))).made
    assert not restraint.note(wish, Done(made=(CHILD,))).made
