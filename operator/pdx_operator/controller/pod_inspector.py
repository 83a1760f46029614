"""Looking at the pods of an object that is not ready: seldom, and only to say why.

Pods are not watched: a cluster has ten times as many of them as of everything else together.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.app.settings import Intervals
from pdx_operator.kube.cache import Key
from pdx_operator.kube.client import ApiError, AwayError, Cluster
from pdx_operator.kube.resources import POD
from pdx_operator.observed.workloads import PodView, PoolState, ServiceState, pod_view
from pdx_operator.plan.reconcile_plan import Decision
from pdx_operator.status.diagnosis import LogRequest, logs_wanted

_MOST: Final = 300
"""Pods of one object that are looked at."""

Run = tuple[str, str, int]
"""Pod, container, restarts: one run of a container."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of an object's pods."""

    pods: tuple[PodView, ...] = ()
    logs: Mapping[str, str] = field(default_factory=dict)
    """The end of the log of a run that has failed, by pod."""
    done: bool = False
    """Whether there was a look, or no need of one."""


class PodInspector:
    """When to look at one object's pods, and what was seen last."""

    def __init__(
        self, cluster: Cluster, slots: asyncio.Semaphore, key: Key, pace: Intervals, clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._slots = slots
        self._key = key
        self._pace = pace
        self._clock = clock
        self._delay = pace.look
        self._due = 0.0
        self._state: object = None
        self._seen = Look()
        self._logs: dict[Run, str] = {}

    async def look(self, decision: Decision, *, written: bool) -> tuple[Look, float | None]:
        """What was seen last, and the seconds until pods should be looked at again (None: no need)."""
        if not decision.awaits:
            self._state, self._seen, self._logs = None, Look(), {}
            return Look(done=True), None
        parts: tuple[PoolState | ServiceState, ...] = (*decision.pools, *decision.services)
        state = tuple((part.name, part.revision, part.replicas, part.ready) for part in parts)
        if written or self._state not in (None, state):
            # Something moves: what is not ready may well be in a moment.
            self._due = self._clock() + self._delay
        self._state = state
        if self._due <= self._clock():
            self._seen = await self._look()
            self._due = self._clock() + self._delay
            self._delay = min(2 * self._delay, self._pace.look_most)
        return self._seen, self._due - self._clock()

    async def _look(self) -> Look:
        # The API server answers version 0 from memory, which is recent enough to say why; then it heeds no limit.
        query = {"labelSelector": f"{LABEL_DEPLOYMENT}={self._key.name}", "resourceVersion": "0"}
        async with self._slots:
            found = await self._cluster.list(POD, self._key.namespace, **query)
            pods = tuple(pod_view(pod) for pod in found["items"][:_MOST])
            restarts = {(pod.name, c.name): c.restarts for pod in pods for c in pod.containers}
            former, self._logs = self._logs, {}
            logs = {}
            for request in logs_wanted(pods):
                run = (request.pod, request.container, restarts[request.pod, request.container])
                self._logs[run] = logs[request.pod] = former[run] if run in former else await self._log(request)
        return Look(pods, logs, done=True)

    async def _log(self, request: LogRequest) -> str:
        try:
            return await self._cluster.log(
                self._key.namespace, request.pod, request.container, previous=request.previous
            )
        except AwayError:
            raise
        except ApiError:
            # The log is gone, or the node is: the termination message has to do.
            return ""
