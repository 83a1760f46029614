"""Writes the status of one object: a changed condition at once, changed counts after a delay."""

from collections.abc import Callable, Mapping
from typing import Any

from pdx_api.kube.client import Cluster
from pdx_api.names import CONDITION_MANAGED
from pdx_api.spec.status import declared
from pdx_operator.controller.intervals import Intervals
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.resources import Key, Snapshot

Status = Mapping[str, Any]


class StatusWriter:
    """Owner of the delay between two writes of counts."""

    def __init__(
        self, cluster: Cluster, cache: Cache, key: Key, intervals: Intervals, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._key = key
        self._intervals = intervals
        self._clock = clock
        self._delay = intervals.counts
        self._not_before = 0.0

    async def write(self, snapshot: Snapshot, status: Status) -> float:
        """Write the status if it differs; returns the seconds to wait first if only counts differ, otherwise 0."""
        live = snapshot.body.get("status") or {}
        if not _differs(status, live):
            return 0.0
        if _essence(status) == _essence(live):
            wait = self._not_before - self._clock()
            if wait > 0:
                return wait
            self._delay = min(2 * self._delay, self._intervals.counts_max)
        else:
            self._delay = self._intervals.counts
        self._not_before = self._clock() + self._delay
        uid = snapshot.body["metadata"]["uid"]
        body = await self._cluster.apply_status(self._key.namespace, self._key.name, uid=uid, status=dict(status))
        self._cache.upsert_object(body, own=True)
        return 0.0


def _differs(desired: Status, live: Status) -> bool:
    """Whether the status differs, apart from conditions of other writers and fields of other versions.

    A newer CRD may fill in defaults of fields that this version does not write.
    """
    # A notice of another operator is removed: that is the answer.
    ours = {CONDITION_MANAGED, *(condition["type"] for condition in desired.get("conditions") or ())}
    kept = [condition for condition in live.get("conditions") or () if condition["type"] in ours]
    return declared({**live, "conditions": kept}) != {**desired, "conditions": list(desired.get("conditions") or ())}


def _essence(status: Status) -> object:
    """The part of a status that a client may be waiting for: everything but counts and messages."""
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions") or ()}
    plain = {name: value for name, value in status.items() if isinstance(value, str | int)}
    return plain, conditions
