"""Delays writes that were performed before and did not last.

If another writer reverts a write, or the API server refuses it, it is repeated ever more rarely. If the API server
stores something else than was applied (a field that it never grants, a policy that rewrites it), it is not repeated
until the object or the desired state changes. A new spec resets everything, and so does a while without writes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pdx_api.kube.backoff import Backoff
from pdx_operator.controller.applier import ApplyResult, Drift
from pdx_operator.controller.intervals import Intervals
from pdx_operator.kube.resources import ChildKey
from pdx_operator.plan.operations import Apply, Delete, Problem, RevertedChange
from pdx_operator.plan.reconcile_plan import Plan

_REVERTED_AFTER: Final = 3
"""Equal writes after which another writer counts as reverting them."""
_QUIET: Final = 2.0
"""A child without writes for this multiple of the longest delay is forgotten."""


@dataclass(slots=True)
class _Record:
    """The writes of one child towards one desired state."""

    desired: str
    backoff: Backoff
    writes: int = 0
    last: float = 0.0
    not_before: float = 0.0
    reason: str = ""
    reported: set[str] = field(default_factory=set)
    problem: Problem | None = None
    drift: Drift | None = None


@dataclass(frozen=True, slots=True)
class FilteredPlan:
    """The writes of a plan that may be performed now, and what is to be reported about the other ones."""

    plan: Plan
    problems: tuple[Problem, ...] = ()
    reverted: tuple[RevertedChange, ...] = ()
    wait: float | None = None
    """Seconds until more may be written, or until a reverted change is no longer reported."""


class WriteBackoff:
    """Owner of the history of one object's writes; `clock` is monotonic, in seconds."""

    def __init__(self, intervals: Intervals, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._intervals = intervals
        self._clock = clock
        self._random = random
        self._generation = 0
        self._records: dict[ChildKey, _Record] = {}

    def filter(self, plan: Plan, generation: int) -> FilteredPlan:
        """Remove the writes that have to wait; `generation` is the spec's."""
        now = self._clock()
        if generation != self._generation:
            self._generation = generation
            self._records.clear()
        self._expire(now)
        operations = {operation.key: operation for operation in _operations(plan)}
        for child, record in self._records.items():
            if child not in operations:
                record.drift = None
        waiting = {child for child, operation in operations.items() if self._waits(operation, now)}
        records = [self._records[child] for child in sorted(waiting)]
        waits = [r.not_before - now for r in records if r.drift is None]
        waits += [self._expiry(r) - now for r in self._records.values() if r.writes >= _REVERTED_AFTER]
        return FilteredPlan(
            _without(plan, waiting),
            problems=tuple(record.problem for record in records if record.problem is not None),
            reverted=tuple(self._reverted()),
            wait=min(waits, default=None),
        )

    def record(self, plan: Plan, result: ApplyResult) -> ApplyResult:
        """Record the writes; returns the result without writes that were reported before."""
        now = self._clock()
        problems = {problem.child: problem for problem in result.problems}
        drifts = {drift.child: drift for drift in result.drifts}
        written = {*result.created, *drifts, *(apply.key for apply in result.updated)}
        for operation in _operations(plan):
            record = self._record_of(operation)
            record.writes += operation.key in written
            record.last = now
            record.not_before = now + record.backoff.next()
            record.problem, record.drift = problems.get(operation.key), drifts.get(operation.key)
            record.reason = operation.reason if isinstance(operation, Apply) else ""
        return replace(
            result,
            created=tuple(child for child in result.created if self._is_new(child, "")),
            updated=tuple(apply for apply in result.updated if self._is_new(apply.key, apply.reason)),
        )

    def _record_of(self, operation: Apply | Delete) -> _Record:
        record = self._records.get(operation.key)
        if record is None or record.desired != operation.desired:
            backoff = Backoff(self._intervals.retry, self._intervals.retry_max, self._random)
            record = self._records[operation.key] = _Record(operation.desired, backoff)
        return record

    def _waits(self, operation: Apply | Delete, now: float) -> bool:
        record = self._records.get(operation.key)
        if record is None or record.desired != operation.desired:
            return False
        if record.drift is not None and isinstance(operation, Apply):
            same = (operation.reason, operation.version) == (record.drift.path, record.drift.version)
            return same or now < record.not_before
        return now < record.not_before

    def _is_new(self, child: ChildKey, path: str) -> bool:
        reported = self._records[child].reported
        new = path not in reported
        reported.add(path)
        return new

    def _reverted(self) -> Iterator[RevertedChange]:
        for child, record in sorted(self._records.items()):
            if record.drift is not None:
                yield RevertedChange(child, record.drift.path)
            elif record.writes >= _REVERTED_AFTER and record.problem is None:
                yield RevertedChange(child, record.reason)

    def _expire(self, now: float) -> None:
        """Forget old records, except those with drift: only the record prevents a useless write."""
        for child, record in list(self._records.items()):
            if record.drift is None and now >= self._expiry(record):
                del self._records[child]

    def _expiry(self, record: _Record) -> float:
        return record.last + _QUIET * self._intervals.retry_max


def _operations(plan: Plan) -> Iterator[Apply | Delete]:
    yield from plan.applies
    yield from plan.deletes
    yield from plan.deletes_of_previous


def _without(plan: Plan, waiting: set[ChildKey]) -> Plan:
    return replace(
        plan,
        applies=tuple(apply for apply in plan.applies if apply.key not in waiting),
        deletes=tuple(delete for delete in plan.deletes if delete.key not in waiting),
        deletes_of_previous=tuple(delete for delete in plan.deletes_of_previous if delete.key not in waiting),
    )
