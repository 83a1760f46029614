"""What of a decision waits, because it was tried before and did not last.

Somebody who undoes what the operator writes is given way to, longer each time; so is an API server that refuses. What
it has otherwise than asked for (a field that it never grants, a policy that rewrites it) is not written again until the
object or the wish changes. All of this is forgotten with a new spec, and after a while in which nothing was written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pdx_operator.app.settings import Intervals
from pdx_operator.controller.applier import Denied, Done, Problem
from pdx_operator.kube.backoff import Backoff
from pdx_operator.kube.cache import ChildKey
from pdx_operator.plan.reconcile_plan import Change, Decision, Removal

_FIGHT: Final = 3
"""Writes of one and the same after which somebody is said to undo them."""
_QUIET: Final = 2.0
"""Times the longest delay: what was not written for so long is written at once again."""


@dataclass(slots=True)
class _Record:
    """One child, since what is wanted of it is what it is."""

    wanted: str
    backoff: Backoff
    times: int = 0
    """How often it was written."""
    last: float = 0.0
    not_before: float = 0.0
    reason: str = ""
    told: set[str] = field(default_factory=set)
    problem: Problem | None = None
    denied: Denied | None = None


@dataclass(frozen=True, slots=True)
class Undone:
    """A child that does not stay as it is written."""

    child: ChildKey
    path: str
    """The field; empty when the child is deleted."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """What of a decision may be written now, and what is to be said of the rest."""

    decision: Decision
    problems: tuple[Problem, ...] = ()
    undone: tuple[Undone, ...] = ()
    wait: float | None = None
    """Seconds until more may be written, or something may no longer be said."""


class WriteBackoff:
    """The memory of one object's writes; `clock` is monotonic, in seconds."""

    def __init__(self, pace: Intervals, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._random = random
        self._generation = 0
        self._records: dict[ChildKey, _Record] = {}

    def sift(self, decision: Decision, generation: int) -> Sifted:
        """Take away what has to wait; `generation` is that of the spec."""
        now = self._clock()
        if generation != self._generation:
            self._generation = generation
            self._records.clear()
        self._forget(now)
        acts = {act.key: act for act in _acts(decision)}
        for child, record in self._records.items():
            if child not in acts:
                record.denied = None
        waiting = {child for child, act in acts.items() if self._waits(act, now)}
        records = [self._records[child] for child in sorted(waiting)]
        waits = [r.not_before - now for r in records if r.denied is None]
        waits += [self._end(r) - now for r in self._records.values() if r.times >= _FIGHT]
        return Sifted(
            replace(
                decision,
                changes=tuple(change for change in decision.changes if change.key not in waiting),
                removals=tuple(removal for removal in decision.removals if removal.key not in waiting),
                leaving=tuple(removal for removal in decision.leaving if removal.key not in waiting),
            ),
            problems=tuple(record.problem for record in records if record.problem is not None),
            undone=tuple(self._undone()),
            wait=min(waits, default=None),
        )

    def note(self, decision: Decision, done: Done) -> Done:
        """Remember what was tried; returns what of it is news."""
        now = self._clock()
        problems = {problem.child: problem for problem in done.problems}
        denied = {denial.child: denial for denial in done.denied}
        written = {*done.made, *denied, *(change.key for change in done.changed)}
        for act in _acts(decision):
            record = self._record(act)
            record.times += act.key in written
            record.last = now
            record.not_before = now + record.backoff.next()
            record.problem, record.denied = problems.get(act.key), denied.get(act.key)
            record.reason = act.reason if isinstance(act, Change) else ""
        return replace(
            done,
            made=tuple(child for child in done.made if self._is_news(child, "")),
            changed=tuple(change for change in done.changed if self._is_news(change.key, change.reason)),
        )

    def _record(self, act: Change | Removal) -> _Record:
        record = self._records.get(act.key)
        if record is None or record.wanted != _wanted(act):
            backoff = Backoff(self._pace.retry, self._pace.retry_most, self._random)
            record = self._records[act.key] = _Record(_wanted(act), backoff)
        return record

    def _waits(self, act: Change | Removal, now: float) -> bool:
        record = self._records.get(act.key)
        if record is None or record.wanted != _wanted(act):
            return False
        if record.denied is not None and isinstance(act, Change):
            same = (act.reason, act.version) == (record.denied.path, record.denied.version)
            return same or now < record.not_before
        return now < record.not_before

    def _is_news(self, child: ChildKey, path: str) -> bool:
        told = self._records[child].told
        new = path not in told
        told.add(path)
        return new

    def _undone(self) -> Iterator[Undone]:
        for child, record in sorted(self._records.items()):
            if record.denied is not None:
                yield Undone(child, record.denied.path)
            elif record.times >= _FIGHT and record.problem is None:
                yield Undone(child, record.reason)

    def _forget(self, now: float) -> None:
        """What was denied stays in mind: nothing else says that it would be."""
        for child, record in list(self._records.items()):
            if record.denied is None and now >= self._end(record):
                del self._records[child]

    def _end(self, record: _Record) -> float:
        return record.last + _QUIET * self._pace.retry_most


def _acts(decision: Decision) -> Iterator[Change | Removal]:
    yield from decision.changes
    yield from decision.removals
    yield from decision.leaving


def _wanted(act: Change | Removal) -> str:
    return act.wanted if isinstance(act, Change) else f"no {act.uid}"
