"""What is found of an object goes into its status: at once where it matters, in good time where only a number moved."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pdx_api.names import Role
from pdx_operator.app.settings import Intervals
from pdx_operator.controller.pod_inspector import Look
from pdx_operator.controller.write_backoff import Sifted
from pdx_operator.kube.cache import Key, Snapshot, Store
from pdx_operator.kube.client import Cluster
from pdx_operator.observed.workloads import Heard
from pdx_operator.render.engines import written_as
from pdx_operator.status import conditions
from pdx_operator.status.conditions import Facts
from pdx_operator.status.diagnosis import Diagnosis, diagnose

Status = Mapping[str, Any]


def status_of(snapshot: Snapshot, sifted: Sifted, look: Look, heard: Heard, now: datetime) -> Status:
    """What the status should be."""
    metadata, decision = snapshot.body["metadata"], sifted.decision
    facts = Facts(
        generation=metadata["generation"],
        namespace=metadata["namespace"],
        deployment=decision.deployment,
        invalid=decision.invalid,
        plan=decision.plan,
        pools=decision.pools,
        gateway=decision.gateway,
        troubles=_troubles(sifted, look, now),
        heard=heard,
        looked=look.done,
    )
    return conditions.build(facts, snapshot.body.get("status") or {}, now)


def _troubles(sifted: Sifted, look: Look, now: datetime) -> list[Diagnosis]:
    """What stands in the way: what cannot be written, what does not start, what does not stay as it is written."""
    decision = sifted.decision
    found = [conditions.refused_child(*key, words="") for key in decision.foreign]
    found += [conditions.refused_child(*problem.child, words=problem.message) for problem in sifted.problems]
    surges = decision.plan is not None and decision.plan.surges
    cause = diagnose(
        decision.pools,
        decision.gateway,
        look.pods,
        look.logs,
        now=now,
        may_use_surge=surges or any(pool.surging for pool in decision.pools),
        fields={role: written_as(decision.deployment.spec, role) for role in Role} if decision.deployment else {},
        services=decision.services,
    )
    found += [cause] if cause else []
    return found + [conditions.undone_child(*undone.child, path=undone.path) for undone in sifted.undone]


class Reporter:
    """Writes one object's status."""

    def __init__(self, cluster: Cluster, store: Store, key: Key, pace: Intervals, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._store = store
        self._key = key
        self._pace = pace
        self._clock = clock
        self._delay = pace.counts
        self._not_before = 0.0

    async def write(self, snapshot: Snapshot, status: Status) -> float:
        """Write the status, unless it stands there already or only numbers moved: then the seconds to wait first."""
        live = snapshot.body.get("status") or {}
        if not _differs(status, live):
            return 0.0
        if _essence(status) == _essence(live):
            wait = self._not_before - self._clock()
            if wait > 0:
                return wait
            self._delay = min(2 * self._delay, self._pace.counts_most)
        else:
            self._delay = self._pace.counts
        self._not_before = self._clock() + self._delay
        uid = snapshot.body["metadata"]["uid"]
        body = await self._cluster.report(self._key.namespace, self._key.name, uid=uid, status=dict(status))
        self._store.put_object(body, own=True)
        return 0.0


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
