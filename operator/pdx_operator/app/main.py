"""The operator's entry point: kopf watches PDDeployments, informers watch their children, reconcilers do the work."""

import argparse
import asyncio
import itertools
import logging
import os
import random
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import kopf
from kubernetes.aio.config import ConfigException

from pdx_api import logs
from pdx_api.names import GROUP, PLURAL, VERSION, LogFormat
from pdx_operator.app.health import serving
from pdx_operator.app.metrics import Metrics
from pdx_operator.app.object_summary import ObjectSummaries
from pdx_operator.app.settings import Settings
from pdx_operator.controller.manager import Manager
from pdx_operator.controller.reconciler import Context, Reconciler
from pdx_operator.controller.transfer_poller import TransferPoller
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.client import ApiError, Cluster
from pdx_operator.kube.event_recorder import EventRecorder
from pdx_operator.kube.informer import Informer
from pdx_operator.kube.resources import CHILD_KINDS, PDDEPLOYMENT, Key

DEFAULT_GATEWAY_IMAGE: Final = "pdx-gateway:latest"
_POD_LISTS: Final = 4
"""Concurrent lists of pods."""

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns 1, with one sentence on stderr, if no cluster is configured."""
    settings = parse_arguments(argv)
    _configure_logs(settings)
    try:
        return asyncio.run(_serve(settings))
    except ConfigException as error:
        sys.stderr.write(f"pdx operator: no cluster is configured: {error}\n")
        return 1


def parse_arguments(argv: Sequence[str] | None) -> Settings:
    """Read the command line; a wrong one ends the program."""
    parser = argparse.ArgumentParser(prog="python -m pdx_operator", description="Reconciles PDDeployments.")
    parser.add_argument("--namespace", action="append", default=[], help="namespace to watch, repeatable; none: all")
    parser.add_argument(
        "--gateway-image", default=DEFAULT_GATEWAY_IMAGE, help="image of gateways whose spec names none"
    )
    parser.add_argument("--health-port", type=int, default=8081, help="port of /healthz, /readyz and /metrics; 0: none")
    parser.add_argument(
        "--log-format", type=LogFormat, choices=list(LogFormat), default=LogFormat.TEXT, help="Text (default) or JSON"
    )
    parser.add_argument("--verbose", action="store_true", help="also log plans and requests")
    add = parser.add_argument
    add(
        "--own-namespace",
        default=_own_namespace(),
        help="namespace of the operator's pod, if it runs in one (%(default)s)",
    )
    given = parser.parse_args(argv)
    return Settings(
        gateway_image=given.gateway_image,
        operator_namespace=given.own_namespace,
        namespaces=tuple(dict.fromkeys(given.namespace)),
        health_port=given.health_port,
        log_format=given.log_format,
        verbose=given.verbose,
    )


def _own_namespace() -> str:
    """The namespace of this pod; empty outside a pod."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return ""


def _configure_logs(settings: Settings) -> None:
    logs.configure(settings.log_format, "%(asctime)s %(levelname)s %(message)s")
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("pdx_operator").setLevel(logging.DEBUG if settings.verbose else logging.INFO)
    logging.getLogger("kopf").setLevel(logging.INFO if settings.verbose else logging.WARNING)
    # kopf logs every event that it delivers.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


async def _serve(settings: Settings) -> int:
    """The exit status."""
    namespaces: tuple[str | None, ...] = settings.namespaces or (None,)
    metrics = Metrics(time.time)
    cluster = await Cluster.connect(settings.requests, len(namespaces) * len(CHILD_KINDS), metrics.count_request)
    operator = Operator(settings, cluster, metrics, namespaces)
    try:
        async with serving(settings.health_port, operator.is_ready, metrics):
            await _await_crd(cluster, namespaces[0])
            return await operator.run()
    finally:
        await cluster.close()


async def _await_crd(cluster: Cluster, namespace: str | None) -> None:
    """Wait until the API server serves PDDeployments: kopf checks that only once."""
    for attempt in itertools.count():
        try:
            await cluster.list(PDDEPLOYMENT, namespace, limit="1")
        except ApiError as error:
            if attempt % 30 == 0:
                log.warning("PDDeployments cannot be read yet: %s", error)
            await asyncio.sleep(1)
        else:
            return


class Operator:
    """Owner of the cache, the informers and the reconcilers."""

    def __init__(
        self, settings: Settings, cluster: Cluster, metrics: Metrics, namespaces: Sequence[str | None]
    ) -> None:
        self._settings = settings
        summaries = ObjectSummaries()
        metrics.add_objects(summaries.by_name)
        self._cache = Cache(self._enqueue, summaries.observe)
        self._informers = [
            Informer(cluster, self._cache, kind, namespace, random.random)
            for kind in CHILD_KINDS
            for namespace in namespaces
        ]
        self._recorder = EventRecorder(cluster, socket.gethostname(), lambda: datetime.now(UTC))
        context = Context(
            cluster=cluster,
            cache=self._cache,
            recorder=self._recorder,
            transfer_poller=TransferPoller(cluster, lambda key: self._enqueue(key, False), random.random),
            count_reconcile=metrics.count_reconcile,
            gateway_image=settings.gateway_image,
            operator_namespace=settings.operator_namespace,
            intervals=settings.intervals,
            reconciles=asyncio.Semaphore(settings.max_concurrent_reconciles),
            pod_lists=asyncio.Semaphore(_POD_LISTS),
            synced=asyncio.Event(),
            now=lambda: datetime.now(UTC),
            clock=time.monotonic,
            random=random.random,
        )
        self._synced = context.synced
        self._transfer_poller = context.transfer_poller
        self._manager = Manager(lambda key: Reconciler(key, context))

    async def run(self) -> int:
        """Run until a signal (returns 0), or until an internal task fails (returns 1)."""
        tasks = [asyncio.create_task(informer.run(), name=f"informer {informer}") for informer in self._informers]
        tasks.append(asyncio.create_task(self._recorder.run(), name="events"))
        tasks.append(asyncio.create_task(self._sync(), name="sync"))
        # These tasks end only through a bug, and then the operator must restart.
        stop = asyncio.Event()
        for task in tasks:
            task.add_done_callback(lambda task: _check(task, stop))
        try:
            await self._watch(stop)
            return int(any(task.done() and not task.cancelled() and task.exception() for task in tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def is_ready(self) -> bool:
        """Whether the cache contains everything that existed at the start."""
        return self._synced.is_set()

    def _enqueue(self, key: Key, spec_changed: bool) -> None:
        self._manager.enqueue(key, spec_changed, exists=key in self._cache)

    async def _sync(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()
        self._synced.set()
        log.info("pdx operator: watching %s", ", ".join(self._settings.namespaces) or "all namespaces")

    async def _watch(self, stop: asyncio.Event) -> None:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(_login)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(self._on_event)

        async def on_cleanup(**_: Any) -> None:
            # kopf only ends after all tasks that were started since its start, including its own task for this flag.
            stop.set()
            await self._manager.stop()
            await self._transfer_poller.close()

        kopf.on.cleanup(registry=registry)(on_cleanup)
        await kopf.operator(
            registry=registry,
            settings=_kopf_settings(),
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            stop_flag=stop,
        )

    async def _on_event(self, event: Any, **_: Any) -> None:
        body = event["object"]
        if event["type"] == "DELETED":
            metadata = body["metadata"]
            self._cache.delete_object(Key(metadata["namespace"], metadata["name"]), metadata["uid"])
        else:
            self._cache.upsert_object(body)


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    logins = [kopf.login_with_service_account, kopf.login_with_kubeconfig]
    # The same order as `Cluster.connect`.
    logins.sort(key=lambda login: login is kopf.login_with_service_account and bool(os.environ.get("KUBECONFIG")))
    return next((found for login in logins if (found := login(**kwargs)) is not None), None)


class _Delays:
    """Endless seconds between attempts to reach the API server: kopf ends when its delays run out."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0))


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # Otherwise kopf watches CRDs and namespaces, for which the operator has no permission.
    settings.scanning.disabled = True
    settings.networking.error_backoffs = _Delays()
    settings.watching.chunk_size = 200
    settings.queueing.idle_timeout = 1.0
    return settings


def _check(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("%s ended: %r", task.get_name(), task.exception())
        stop.set()
