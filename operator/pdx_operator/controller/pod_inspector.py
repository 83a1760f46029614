"""Lists the pods of an object, at long intervals, to find out why the object is not ready.

Pods are not watched: a cluster has ten times as many pods as objects of all other kinds.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from pdx_api.kube.client import ApiError, Cluster, UnavailableError
from pdx_api.kube.kinds import POD
from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.controller.intervals import Intervals
from pdx_operator.kube.resources import Key
from pdx_operator.observed.workloads import ObservedPool, ObservedService, PodInspection, PodView, pod_view
from pdx_operator.plan.reconcile_plan import Plan
from pdx_operator.status.diagnosis import ENDED, ContainerLog, logs_to_read

_MAX_PODS: Final = 300
"""Pods of one object that are inspected, not counting those that have ended."""
_MAX_ENDED: Final = 50
"""The newest pods that have ended, which may explain why their successors are missing."""
_MAX_LISTED: Final = 3000
"""Pods that are read for it: Kubernetes keeps thousands that have ended."""

Run = tuple[str, str, int]
"""One run of a container: pod, container, restarts."""


class PodInspector:
    """Owner of the last inspection of one object's pods; decides when the next one is due."""

    def __init__(
        self,
        cluster: Cluster,
        slots: asyncio.Semaphore,
        key: Key,
        intervals: Intervals,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._slots = slots
        self._key = key
        self._intervals = intervals
        self._clock = clock
        self._delay = intervals.inspect
        self._due = 0.0
        self._state: object = None
        self._last = PodInspection()
        self._logs: dict[Run, str] = {}

    async def inspect(self, plan: Plan, *, written: bool) -> tuple[PodInspection, float | None]:
        """The last inspection, and the seconds until the next one (None: not needed)."""
        if not plan.awaits_pods:
            self._state, self._last, self._logs = None, PodInspection(), {}
            return PodInspection(done=True), None
        workloads = plan.workloads
        parts: tuple[ObservedPool | ObservedService, ...] = (*workloads.pools.values(), *workloads.services)
        state = tuple((part.name, part.revision, part.replicas, part.ready) for part in parts)
        if written or self._state not in (None, state):
            # Pods that are unready after a change may become ready soon.
            self._due = self._clock() + self._delay
        self._state = state
        if self._due <= self._clock():
            self._last = await self._list()
            self._due = self._clock() + self._delay
            self._delay = min(2 * self._delay, self._intervals.inspect_max)
        return self._last, self._due - self._clock()

    async def _list(self) -> PodInspection:
        found: list[PodView] = []
        ended: list[PodView] = []
        listed = 0
        async with self._slots:
            selector = f"{LABEL_DEPLOYMENT}={self._key.name}"
            async for page in self._cluster.pages(POD, self._key.namespace, labelSelector=selector):
                for view in map(pod_view, page["items"]):
                    (ended if view.phase in ENDED else found).append(view)
                ended = sorted(ended, key=lambda view: view.placed)[-_MAX_ENDED:]
                listed += len(page["items"])
                if len(found) >= _MAX_PODS or listed >= _MAX_LISTED:
                    break
            pods = (*found[:_MAX_PODS], *ended)
            restarts = {(pod.name, c.name): c.restarts for pod in pods for c in pod.containers}
            previous, self._logs = self._logs, {}
            logs = {}
            for log in logs_to_read(pods):
                run = (log.pod, log.container, restarts[log.pod, log.container])
                self._logs[run] = logs[log.pod] = previous[run] if run in previous else await self._read(log)
        return PodInspection(pods, logs, done=True)

    async def _read(self, log: ContainerLog) -> str:
        try:
            return await self._cluster.log(self._key.namespace, log.pod, log.container, previous=log.previous)
        except UnavailableError:
            raise
        except ApiError:
            # The log or its node is gone: the diagnosis then uses the termination message.
            return ""
