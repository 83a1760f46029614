"""Looking at the pods of an object that is not ready: seldom, and only to say why.

Pods are not watched: a cluster has ten times as many of them as of everything else together.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.cluster import Cluster
from pdx_operator.decide import Decision
from pdx_operator.kinds import DEPLOYMENT, POD
from pdx_operator.observed import PodView, gateway_state, pod_view
from pdx_operator.settings import Pace
from pdx_operator.store import Key, Snapshot

_MOST: Final = 300
"""Pods of one object that are looked at."""


class Looks:
    """When to look at one object's pods, and what was seen last."""

    def __init__(
        self, cluster: Cluster, slots: asyncio.Semaphore, key: Key, pace: Pace, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._slots = slots
        self._key = key
        self._pace = pace
        self._clock = clock
        self._delay = pace.look
        self._due: float | None = None
        self._seen: tuple[PodView, ...] = ()
        self._state: object = None

    async def pods(
        self, snapshot: Snapshot, decision: Decision, *, written: bool
    ) -> tuple[Sequence[PodView], float | None]:
        """The pods as last seen, and the seconds until they should be looked at again (None: no need)."""
        if is_ready(snapshot, decision):
            self._due, self._seen, self._delay = None, (), self._pace.look
            return (), None
        state = tuple((pool.name, pool.replicas, pool.ready) for pool in decision.pools)
        if written or state != self._state:
            self._delay = self._pace.look
            if written or self._due is not None:
                # Pods need a moment before there is anything to see.
                self._due = self._clock() + self._delay
            self._state = state
        if self._due is None or self._due <= self._clock():
            self._seen = await self._look()
            self._due = self._clock() + self._delay
            self._delay = min(2 * self._delay, self._pace.look_most)
        return self._seen, max(0.0, self._due - self._clock())

    async def _look(self) -> tuple[PodView, ...]:
        # The API server answers version 0 from memory, which is recent enough to say why.
        query = {"labelSelector": f"{LABEL_DEPLOYMENT}={self._key.name}", "limit": str(_MOST), "resourceVersion": "0"}
        async with self._slots:
            found = await self._cluster.list(POD, self._key.namespace, **query)
        return tuple(pod_view(pod) for pod in found["items"][:_MOST])


def is_ready(snapshot: Snapshot, decision: Decision) -> bool:
    """Whether nothing is awaited: every engine and every gateway that is wanted serves."""
    if decision.plan is None:
        return True
    gateways = (
        gateway_state(body)
        for key, body in snapshot.children.items()
        if key.kind == DEPLOYMENT.name and key.name.endswith("-gateway")
    )
    return decision.plan.done and all(state.settled and state.ready >= state.replicas for state in gateways)
