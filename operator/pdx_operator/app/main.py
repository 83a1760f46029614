"""The operator as a program: kopf brings PDDeployments, feeds bring their children, loops do the work."""

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
from pdx_operator.app.settings import Settings
from pdx_operator.controller.manager import Manager
from pdx_operator.controller.reconciler import Context, Loop
from pdx_operator.controller.transfer_poller import TransferPoller
from pdx_operator.kube.cache import Key, Store
from pdx_operator.kube.client import ApiError, Cluster
from pdx_operator.kube.event_recorder import EventRecorder
from pdx_operator.kube.informer import Informer
from pdx_operator.kube.resources import CHILD_KINDS, PDDEPLOYMENT

DEFAULT_GATEWAY_IMAGE: Final = "pdx-gateway:latest"
_LOOKS: Final = 4
"""Lists of pods that may be open at the same time."""

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 1 and one sentence on stderr when there is no cluster to work on."""
    settings = parse_arguments(argv)
    _configure_logs(settings)
    try:
        return asyncio.run(_serve(settings))
    except ConfigException as error:
        sys.stderr.write(f"pdx operator: no cluster is configured: {error}\n")
        return 1


def parse_arguments(argv: Sequence[str] | None) -> Settings:
    """The settings that the command line asks for; ends the program when it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m pdx_operator", description="Makes PDDeployments so.")
    parser.add_argument("--namespace", action="append", default=[], help="where to work, repeatable; none: everywhere")
    parser.add_argument("--gateway-image", default=DEFAULT_GATEWAY_IMAGE, help="image of gateways that name none")
    parser.add_argument("--health-port", type=int, default=8081, help="port of /healthz, /readyz and /metrics; 0: none")
    parser.add_argument(
        "--log-format", type=LogFormat, choices=list(LogFormat), default=LogFormat.TEXT, help="Text (default) or JSON"
    )
    parser.add_argument("--verbose", action="store_true", help="log what is decided and asked as well")
    add = parser.add_argument
    add("--own-namespace", default=_own_namespace(), help="where its own pod runs, if in one (%(default)s)")
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
    """What a pod is told of its own; empty outside of one."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return ""


def _configure_logs(settings: Settings) -> None:
    logs.configure(settings.log_format, "%(asctime)s %(levelname)s %(message)s")
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("pdx_operator").setLevel(logging.DEBUG if settings.verbose else logging.INFO)
    logging.getLogger("kopf").setLevel(logging.INFO if settings.verbose else logging.WARNING)
    # It says something of every event that it brings.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


async def _serve(settings: Settings) -> int:
    """The exit status."""
    places: tuple[str | None, ...] = settings.namespaces or (None,)
    metrics = Metrics(time.time)
    cluster = await Cluster.connect(settings.requests, len(places) * len(CHILD_KINDS), metrics.count_request)
    operator = Operator(settings, cluster, metrics, places)
    try:
        async with serving(settings.health_port, operator.is_ready, metrics):
            await _await_crd(cluster, places[0])
            return await operator.run()
    finally:
        await cluster.close()


async def _await_crd(cluster: Cluster, place: str | None) -> None:
    """Wait until the API server serves PDDeployments: kopf looks for them only once."""
    for attempt in itertools.count():
        try:
            await cluster.list(PDDEPLOYMENT, place, limit="1")
        except ApiError as error:
            if attempt % 30 == 0:
                log.warning("PDDeployments cannot be read yet: %s", error)
            await asyncio.sleep(1)
        else:
            return


class Operator:
    """Owner of the store, the feeds and the loops."""

    def __init__(self, settings: Settings, cluster: Cluster, metrics: Metrics, places: Sequence[str | None]) -> None:
        self._settings = settings
        self._store = Store(self._wake)
        metrics.show_objects(lambda: {str(key): standing for key, standing in self._store.standings.items()})
        self._feeds = [
            Informer(cluster, self._store, kind, place, random.random) for kind in CHILD_KINDS for place in places
        ]
        self._recorder = EventRecorder(cluster, socket.gethostname(), lambda: datetime.now(UTC))
        context = Context(
            cluster=cluster,
            store=self._store,
            recorder=self._recorder,
            metrics=metrics,
            settings=settings,
            canaries=TransferPoller(cluster, lambda key: self._wake(key, False), random.random),
            turns=asyncio.Semaphore(settings.turns),
            looking=asyncio.Semaphore(_LOOKS),
            synced=asyncio.Event(),
            now=lambda: datetime.now(UTC),
            clock=time.monotonic,
            random=random.random,
        )
        self._synced = context.synced
        self._canaries = context.canaries
        self._manager = Manager(lambda key: Loop(key, context))

    async def run(self) -> int:
        """Until a signal: 0. Until a part of it ends by a fault: 1."""
        tasks = [asyncio.create_task(feed.run(), name=f"feed {feed}") for feed in self._feeds]
        tasks.append(asyncio.create_task(self._recorder.run(), name="events"))
        tasks.append(asyncio.create_task(self._sync(), name="sync"))
        # Whatever ends a feed is a fault that only a new start mends.
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
        """Whether everything that existed when it started has been read."""
        return self._synced.is_set()

    def _wake(self, key: Key, urgent: bool) -> None:
        self._manager.wake(key, urgent, exists=key in self._store)

    async def _sync(self) -> None:
        for feed in self._feeds:
            await feed.synced.wait()
        self._synced.set()
        log.info("pdx operator: working on %s", ", ".join(self._settings.namespaces) or "all namespaces")

    async def _watch(self, stop: asyncio.Event) -> None:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(_login)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(self._on_event)

        async def on_cleanup(**_: Any) -> None:
            # Before kopf ends it waits for every task that was started meanwhile, its own for this flag too.
            stop.set()
            await self._manager.stop()
            await self._canaries.close()

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
            self._store.drop_object(Key(metadata["namespace"], metadata["name"]), metadata["uid"])
        else:
            self._store.put_object(body)


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    ways = [kopf.login_with_service_account, kopf.login_with_kubeconfig]
    # The same order as `Cluster.connect`.
    ways.sort(key=lambda way: way is kopf.login_with_service_account and bool(os.environ.get("KUBECONFIG")))
    return next((found for way in ways if (found := way(**kwargs)) is not None), None)


class _Delays:
    """Seconds between attempts to reach the API server: kopf ends when they run out, so they never do."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0))


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # It would watch the CRDs and the namespaces of the cluster, which the operator has no need to see.
    settings.scanning.disabled = True
    settings.networking.error_backoffs = _Delays()
    settings.watching.chunk_size = 200
    settings.queueing.idle_timeout = 1.0
    return settings


def _check(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("%s ended: %r", task.get_name(), task.exception())
        stop.set()
