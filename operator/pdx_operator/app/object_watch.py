"""Watches PDDeployments with kopf, restarts it after a failure, and compares its result with lists.

kopf ends at an error in a watch, and when one of its namespaces cannot be read. It reports no object that has been
deleted while no watch was open. So this module watches readable namespaces only, starts kopf again, and lists the
metadata of all objects from time to time.
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import kopf

from pdx_api.names import GROUP, PLURAL, VERSION
from pdx_operator.kube.backoff import Backoff
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.client import ApiError, Cluster
from pdx_operator.kube.resources import PDDEPLOYMENT, Key

_SWEEP_SECONDS: Final = 300.0
"""Between two lists of all PDDeployments."""
_RELIST_SECONDS: Final = 5.0
"""Between kopf's list and ours."""
_UNREADABLE_SECONDS: Final = 15.0
"""Between two attempts to read a namespace that cannot be read."""
_SYNC_SECONDS: Final = 0.1

log = logging.getLogger(__name__)


class ObjectWatch:
    """Owner of kopf. `begin` and `end` are called before kopf starts and before it ends."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        namespaces: Sequence[str | None],
        *,
        begin: Callable[[], None],
        end: Callable[[], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._namespaces = tuple(namespaces)
        self._begin = begin
        self._end = end
        self._backoff = Backoff(0.5, 30.0, random)
        self._relisted = asyncio.Event()
        self._readable: tuple[str | None, ...] = ()
        self._behind: dict[Key, int] = {}
        self.synced: set[str | None] = set()
        """Namespaces whose objects are all in the cache."""
        self.is_stuck = False
        """Whether kopf's watch has missed a change that a list showed long ago."""

    @property
    def unreadable(self) -> frozenset[str | None]:
        """Namespaces that cannot be read at present."""
        return frozenset(self._namespaces) - frozenset(self._readable)

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until a signal arrives, or until `stop` is set."""
        while not stop.is_set():
            self._readable = await self._probe()
            if self._readable:
                restart = asyncio.Event()
                if await self._watch(stop, restart) and not restart.is_set():
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.next()):
                    await stop.wait()

    async def sweep(self) -> None:
        """Compare the cache with lists, again and again. Never returns."""
        while True:
            for namespace in self._readable:
                with contextlib.suppress(ApiError):
                    await self._compare(namespace, periodic=not self._relisted.is_set())
            self._relisted.clear()
            pending = len(self.synced) < len(self._readable)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SYNC_SECONDS if pending else _SWEEP_SECONDS):
                    await self._relisted.wait()
                    await asyncio.sleep(_RELIST_SECONDS)

    async def _probe(self) -> tuple[str | None, ...]:
        """The namespaces that can be read now."""
        found: list[str | None] = []
        for namespace in self._namespaces:
            try:
                await self._cluster.list(PDDEPLOYMENT, namespace, limit="1")
            except ApiError as error:
                log.warning("PDDeployments in %s cannot be read yet: %s", namespace or "all namespaces", error)
            else:
                found.append(namespace)
        return tuple(found)

    async def _watch(self, stop: asyncio.Event, restart: asyncio.Event) -> bool:
        """Run kopf once; False if it failed. `restart` is set when another namespace can be read."""
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(_login)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(self.on_event)
        ending = asyncio.Event()

        async def on_cleanup(**_: Any) -> None:
            # kopf only ends after all tasks that were started since its start, including its own task for this flag.
            ending.set()
            await self._end()

        kopf.on.cleanup(registry=registry)(on_cleanup)
        waits = asyncio.create_task(self._until_end(stop, ending, restart), name="end of kopf")
        self._begin()
        try:
            await kopf.operator(
                registry=registry,
                settings=_settings(),
                standalone=True,
                clusterwide=self._namespaces == (None,),
                namespaces=[namespace for namespace in self._readable if namespace is not None],
                stop_flag=ending,
            )
        except Exception as error:
            log.warning("The watch of PDDeployments has failed and is started again: %s", error)
            return False
        finally:
            waits.cancel()
            await self._end()
        return True

    async def _until_end(self, stop: asyncio.Event, ending: asyncio.Event, restart: asyncio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNREADABLE_SECONDS):
                    await stop.wait()
            if self.unreadable and set(await self._probe()) & self.unreadable:
                restart.set()
                break
        ending.set()

    async def on_event(self, event: Any, **_: Any) -> None:
        """Store a change; kopf reports each object of a list with type None."""
        body = event["object"]
        if event["type"] == "DELETED":
            metadata = body["metadata"]
            self._cache.delete_object(Key(metadata["namespace"], metadata["name"]), metadata["uid"])
            return
        if event["type"] is None:
            self._relisted.set()
        self._backoff.reset()
        self._cache.upsert_object(body, listed=self._cache.writes if event["type"] is None else None)

    async def _compare(self, namespace: str | None, *, periodic: bool) -> None:
        existing: dict[Key, int] = {}
        version = 0
        async for page in self._cluster.pages(PDDEPLOYMENT, namespace, metadata_only=True):
            for body in page["items"]:
                metadata = body["metadata"]
                existing[Key(metadata["namespace"], metadata["name"])] = int(metadata["resourceVersion"])
            version = int(page["metadata"]["resourceVersion"])
        self._cache.retain_objects(namespace, existing, version)
        if all(key in self._cache for key in existing):
            self.synced.add(namespace)
        if periodic and namespace in self.synced:
            missed = [k for k, seen in self._behind.items() if k in existing and self._cache.version_of(k) < seen]
            self.is_stuck = bool(missed)
            self._behind = {key: seen for key, seen in existing.items() if self._cache.version_of(key) < seen}


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    logins = [kopf.login_with_service_account, kopf.login_with_kubeconfig]
    # The same order as `Cluster.connect`.
    logins.sort(key=lambda login: login is kopf.login_with_service_account and bool(os.environ.get("KUBECONFIG")))
    return next((found for login in logins if (found := login(**kwargs)) is not None), None)


class _Delays:
    """Endless seconds between attempts to reach the API server: kopf ends when its delays run out."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0))


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # Otherwise kopf watches CRDs and namespaces, for which the operator has no permission.
    settings.scanning.disabled = True
    settings.networking.error_backoffs = _Delays()
    # Tenants choose the size of objects.
    settings.watching.chunk_size = 25
    settings.queueing.idle_timeout = 1.0
    return settings
