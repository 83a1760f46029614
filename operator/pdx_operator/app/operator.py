"""The operator: kopf watches PDDeployments, informers watch their children, reconcilers do the work."""

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from pdx_api.kube.client import Cluster
from pdx_api.kube.informer import Informer
from pdx_api.kube.kinds import CHILD_KINDS, OPTIONAL_KINDS
from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.app import signals
from pdx_operator.app.metrics import Metrics
from pdx_operator.app.object_summary import ObjectSummaries
from pdx_operator.app.object_watch import ObjectWatch
from pdx_operator.app.settings import Settings
from pdx_operator.controller.claims import Claims
from pdx_operator.controller.crd_check import CRDCheck
from pdx_operator.controller.credit import Credit
from pdx_operator.controller.fair_slots import FairSlots
from pdx_operator.controller.gateway_upgrades import GatewayUpgrades
from pdx_operator.controller.manager import Manager
from pdx_operator.controller.reconciler import REST, Context, Reconciler
from pdx_operator.controller.transfer_poller import TransferPoller
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.children import Children
from pdx_operator.kube.crd import missing_fields
from pdx_operator.kube.event_recorder import EventRecorder
from pdx_operator.kube.leadership import Leadership, LeaseLock
from pdx_operator.kube.resources import Key

_POD_LISTS: Final = 4
"""Concurrent lists of pods."""
_SHARE: Final = 0.1
"""Seconds of work per second that cost a namespace no credit: see `Credit`."""
_LARGE: Final = 2
"""Concurrent reconciles of large objects, of two namespaces: while one rests, the other does not wait."""
_LARGE_WORK: Final = 3.0
"""How many times its duration a reconcile of a large object costs: its writes take the API server so much longer."""
_SILENT_SECONDS: Final = 900.0
"""An informer without an event or an answer for so long hangs: each of its watches ends after two minutes."""
_STATE_SECONDS: Final = 0.1

log = logging.getLogger(__name__)


class Operator:
    """Owner of the cache, the informers and the reconcilers."""

    def __init__(
        self, settings: Settings, cluster: Cluster, metrics: Metrics, namespaces: Sequence[str | None]
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._namespaces = tuple(namespaces)
        summaries = ObjectSummaries()
        metrics.add_objects(summaries.by_name)
        metrics.add_states(self.namespace_states, lambda: self._leads.is_set())
        self._cache = Cache(self._enqueue, summaries.observe)
        self._informers = {
            namespace: [
                Informer(
                    cluster,
                    Children(self._cache, kind, namespace),
                    kind,
                    namespace,
                    LABEL_DEPLOYMENT,
                    random.random,
                    time.monotonic,
                    optional=kind in OPTIONAL_KINDS,
                )
                for kind in (*CHILD_KINDS, *OPTIONAL_KINDS)
            ]
            for namespace in namespaces
        }
        self._recorder = EventRecorder(cluster, socket.gethostname(), lambda: datetime.now(UTC))
        self._leadership = _leadership(settings, cluster)
        self._leads = self._leadership.leading if self._leadership else asyncio.Event()
        self._crd_check = CRDCheck(lambda: missing_fields(cluster), self._enqueue_all)
        self._transfer_poller = TransferPoller(cluster, lambda key: self._enqueue(key, False), random.random)
        context = self._context(metrics)
        self._manager = Manager(lambda key: Reconciler(key, context))
        self._stop = asyncio.Event()
        self._objects = ObjectWatch(
            cluster,
            self._cache,
            namespaces,
            begin=self._begin,
            end=self._end,
            random=random.random,
            listen=lambda: signals.listen(self._stop),
        )

    def _context(self, metrics: Metrics) -> Context:
        settings, credit = self._settings, Credit(time.monotonic, _SHARE)
        return Context(
            cluster=self._cluster,
            cache=self._cache,
            recorder=self._recorder,
            transfer_poller=self._transfer_poller,
            count_reconcile=metrics.count_reconcile,
            installation=settings,
            claims=Claims(self._cluster, settings.operator_name, time.monotonic, metrics.count_conflict),
            gateway_upgrades=GatewayUpgrades(
                settings.max_gateway_upgrades, time.monotonic, lambda key: self._enqueue(key, False)
            ),
            crd_check=self._crd_check,
            intervals=settings.intervals,
            reconciles=FairSlots(settings.max_concurrent_reconciles, credit, time.monotonic),
            large_reconciles=FairSlots(_LARGE, credit, time.monotonic, _LARGE_WORK / (1 + REST)),
            pod_lists=asyncio.Semaphore(_POD_LISTS),
            ready=self._ready,
            caught_up=lambda: self._objects.caught_up(),
            now=lambda: datetime.now(UTC),
            clock=time.monotonic,
            random=random.random,
        )

    async def run(self) -> int:
        """Run until a signal (returns 0), or until an internal task fails or the Lease is lost (returns 1)."""
        work = {f"informer {informer}": informer.run() for each in self._informers.values() for informer in each}
        work |= {"events": self._recorder.run(), "lists": self._objects.sweep(), "CRD": self._crd_check.run()}
        if self._leadership is not None:
            self._cluster.fence = self._leadership.holds
            work["Lease"] = self._leadership.run()
        else:
            self._leads.set()
        tasks = [asyncio.create_task(each, name=name) for name, each in work.items()]
        # These tasks end only through a bug, or with the Lease, and then the operator must restart.
        for task in tasks:
            task.add_done_callback(lambda task: _check(task, self._stop))
        signals.listen(self._stop)
        tasks.append(asyncio.create_task(self._report_sync(), name="sync"))
        try:
            await self._objects.run(self._stop)
            return int(any(task.done() and not task.cancelled() and task.exception() for task in tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._leadership is not None:
                await self._leadership.release()

    def is_ready(self) -> bool:
        """Whether the cache contains everything that can be read."""
        return all(state is not None for state in self.namespace_states().values())

    def is_alive(self) -> bool:
        """Whether every watch has received something recently."""
        oldest = min(informer.last_active for each in self._informers.values() for informer in each)
        return time.monotonic() - oldest < _SILENT_SECONDS and not self._objects.is_stuck

    def namespace_states(self) -> dict[str, bool | None]:
        """By namespace (empty: all): True once it has been read, False if it cannot be read, None before."""
        return {namespace or "": self._state(namespace) for namespace in self._namespaces}

    def _state(self, namespace: str | None) -> bool | None:
        informers = self._informers[namespace]
        if namespace in self._objects.synced and all(informer.synced.is_set() for informer in informers):
            return True
        refused = any(informer.refused for informer in informers)
        return False if refused and len(self._namespaces) > 1 else None

    async def _ready(self, namespace: str) -> None:
        for informer in self._informers.get(namespace) or self._informers[None]:
            await informer.synced.wait()
        await self._leads.wait()
        await self._crd_check.done.wait()

    def _enqueue(self, key: Key, spec_changed: bool) -> None:
        self._manager.enqueue(key, spec_changed, exists=key in self._cache)

    def _enqueue_all(self) -> None:
        for key in list(self._cache.keys()):
            self._enqueue(key, True)

    def _begin(self) -> None:
        self._manager.start()
        self._enqueue_all()

    async def _end(self) -> None:
        await self._manager.stop()
        await self._transfer_poller.close()

    async def _report_sync(self) -> None:
        while not self.is_ready():  # noqa: ASYNC110
            await asyncio.sleep(_STATE_SECONDS)
        log.info("pdx operator: watching %s", ", ".join(self._settings.namespaces) or "all namespaces")


def _leadership(settings: Settings, cluster: Cluster) -> Leadership | None:
    if not settings.operator_name:
        return None
    lock = LeaseLock(
        cluster,
        settings.operator_namespace,
        settings.lease_name,
        identity=f"{socket.gethostname()}_{uuid.uuid4()}",
        seconds=settings.lease_seconds,
        clock=time.monotonic,
        now=lambda: datetime.now(UTC),
    )
    return Leadership(lock)


def _check(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("%s ended: %r", task.get_name(), task.exception())
        stop.set()
