"""What is found of an object goes into its status: at once where it matters, in good time where only a number moved."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pdx_operator.cluster import Cluster
from pdx_operator.decide import Decision
from pdx_operator.events import Step
from pdx_operator.executor import Problem
from pdx_operator.observed import PodView
from pdx_operator.settings import Pace
from pdx_operator.store import Key, Snapshot, Store


@dataclass(frozen=True, slots=True)
class Report:
    """A status, and the Events that belong to what changed in it."""

    status: Mapping[str, Any]
    steps: tuple[Step, ...]


def report(
    snapshot: Snapshot, decision: Decision, problems: Sequence[Problem], pods: Sequence[PodView], now: datetime
) -> Report:
    """What the status should be."""
    return Report({"observedGeneration": snapshot.body["metadata"]["generation"]}, ())


class Reporter:
    """Writes one object's status."""

    def __init__(self, cluster: Cluster, store: Store, key: Key, pace: Pace, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._store = store
        self._key = key
        self._pace = pace
        self._clock = clock
        self._delay = pace.counts
        self._not_before = 0.0

    async def write(self, snapshot: Snapshot, found: Report) -> float | None:
        """Write the status unless it stands there already; seconds to wait first if only numbers moved."""
        live = snapshot.body.get("status") or {}
        if not _differs(found.status, live):
            return None
        if _essence(found.status) == _essence(live):
            wait = self._not_before - self._clock()
            if wait > 0:
                return wait
            self._delay = min(2 * self._delay, self._pace.counts_most)
        else:
            self._delay = self._pace.counts
        self._not_before = self._clock() + self._delay
        uid = snapshot.body["metadata"]["uid"]
        body = await self._cluster.report(self._key.namespace, self._key.name, uid=uid, status=dict(found.status))
        self._store.put_object(body, own=True)
        return None


def _differs(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether a status says anything else; conditions of other writers do not count."""
    ours = {condition["type"] for condition in wanted.get("conditions") or ()}
    kept = [condition for condition in live.get("conditions") or () if condition["type"] in ours]
    return {**live, "conditions": kept} != {**wanted, "conditions": list(wanted.get("conditions") or ())}


def _essence(status: Mapping[str, Any]) -> object:
    """What of a status somebody may be waiting for: all but counts and wording."""
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions") or ()}
    plain = {name: value for name, value in status.items() if isinstance(value, str | int)}
    return plain, conditions
