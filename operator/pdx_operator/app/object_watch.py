"""Watches PDDeployments with kopf, restarts kopf after a failure, and lists all PDDeployments to find missed changes.

kopf ends at an error in a watch, and when one of its namespaces cannot be read. It reports no object that has been
deleted while no watch was open. So this module watches readable namespaces only, starts kopf again, and lists the
metadata of all objects from time to time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from pdx_api.kube.backoff import Backoff
from pdx_api.kube.client import ApiError, Cluster
from pdx_api.kube.kinds import PDDEPLOYMENT
from pdx_operator.app.kopf_run import run_kopf
from pdx_operator.app.kopf_session import Bodies
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.object_shape import UnusableObjectError, require_identity
from pdx_operator.kube.resources import Key

_SWEEP_SECONDS: Final = 300.0
"""Between two lists of all PDDeployments."""
_RELIST_SECONDS: Final = 5.0
"""Between kopf's list and ours."""
_UNREADABLE_SECONDS: Final = 15.0
"""Between two attempts to read a namespace that cannot be read."""
_SYNC_SECONDS: Final = 0.5
"""Between two lists until everything that they contain is in the cache."""
_LONGEST_DELAY: Final = 5.0
"""Between two starts of kopf."""
_BEHIND_SECONDS: Final = 1.0
"""How long a reconcile waits for the watch."""

log = logging.getLogger(__name__)


class ObjectWatch:
    """Owner of kopf. `begin` and `end` are called before kopf starts and before it ends.

    `listen` is called when kopf has taken over the signals of the process.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        namespaces: Sequence[str | None],
        *,
        begin: Callable[[], None],
        end: Callable[[], Awaitable[None]],
        random: Callable[[], float],
        listen: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._namespaces = tuple(namespaces)
        self._begin = begin
        self._end = end
        self._listen = listen
        self._bodies = Bodies()
        self._backoff = Backoff(0.5, _LONGEST_DELAY, random)
        self._relisted = asyncio.Event()
        self._restart = asyncio.Event()
        self._readable: tuple[str | None, ...] = ()
        self._reported: set[str | None] = set()
        self._versions: dict[str | None, int] = {}
        self._behind: dict[str | None, dict[Key, int]] = {}
        self._missed: dict[str | None, bool] = {}
        self.synced: set[str | None] = set()
        """Namespaces whose objects are all in the cache."""

    @property
    def is_stuck(self) -> bool:
        """Whether kopf's watch has missed a change that a list showed long ago."""
        return any(self._missed.values())

    @property
    def unreadable(self) -> frozenset[str | None]:
        """Namespaces that cannot be read at present."""
        return frozenset(self._namespaces) - frozenset(self._readable)

    async def caught_up(self) -> None:
        """Return once kopf has read all that its watches have received, or after a second.

        One watch has the events of all tenants, one after the other. A reconcile takes the loop as long as many events.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEHIND_SECONDS):
                while not self._bodies.caught_up.is_set():
                    await self._bodies.caught_up.wait()

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until `stop` is set."""
        while not stop.is_set():
            self._readable = await _unless(stop, self._probe())
            if self._readable and not stop.is_set():
                self._restart.clear()
                if await self._watch(stop) and not self._restart.is_set():
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.next()):
                    await stop.wait()

    async def sweep(self) -> None:
        """Compare the cache with lists, again and again. Never returns."""
        periodic = False
        while True:
            self._relisted.clear()
            for namespace in self._readable:
                with contextlib.suppress(ApiError):
                    await self._compare(namespace, periodic=periodic)
            if not self.synced.issuperset(self._readable or [""]):
                await asyncio.sleep(_SYNC_SECONDS)
                continue
            try:
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._relisted.wait()
                periodic = False
                await asyncio.sleep(_RELIST_SECONDS)
            except TimeoutError:
                periodic = True

    async def _probe(self) -> tuple[str | None, ...]:
        """The namespaces that can be read now."""
        found: list[str | None] = []
        for namespace in self._namespaces:
            try:
                await self._cluster.list(PDDEPLOYMENT, namespace, limit="1")
            except ApiError as error:
                level = logging.DEBUG if namespace in self._reported else logging.WARNING
                log.log(level, "PDDeployments in %s cannot be read yet: %s", namespace or "all namespaces", error)
                self._reported.add(namespace)
            else:
                self._reported.discard(namespace)
                found.append(namespace)
        return tuple(found)

    async def _watch(self, stop: asyncio.Event) -> bool:
        """Run kopf once; False if it failed."""
        ending = asyncio.Event()

        async def on_cleanup(**_: Any) -> None:
            # kopf only ends after all tasks that were started since its start, including its own task for this flag.
            ending.set()
            await self._end()

        waits = asyncio.create_task(self._until_end(stop, ending), name="end of kopf")
        self._begin()
        try:
            await run_kopf(self._readable, self.on_event, on_cleanup, ending, self._listen, self._bodies)
        except Exception as error:
            log.warning("The watch of PDDeployments has failed and is started again: %s", error)
            return False
        finally:
            waits.cancel()
            await self._end()
            self._bodies.clear()
        return True

    async def _until_end(self, stop: asyncio.Event, ending: asyncio.Event) -> None:
        """Set `ending` when the operator stops, or when kopf must be started again."""
        while not stop.is_set() and not self._restart.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNREADABLE_SECONDS):
                    await stop.wait()
            if self.unreadable and set(await self._probe()) & self.unreadable:
                self._restart.set()
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
        """List the metadata of the objects, remove what is gone, and find out what kopf has missed."""
        keys = tuple(self._cache.keys())
        before = {key: self._cache.version_of(key) for key in keys if namespace in (None, key.namespace)}
        existing: dict[Key, int] = {}
        version = 0
        async for page in self._cluster.pages(PDDEPLOYMENT, namespace, metadata_only=True):
            for body in page["items"]:
                with contextlib.suppress(UnusableObjectError):
                    require_identity(body)
                    metadata = body["metadata"]
                    existing[Key(metadata["namespace"], metadata["name"])] = int(metadata["resourceVersion"])
            version = int(page["metadata"]["resourceVersion"])
        self._cache.remove_objects({key: seen for key, seen in before.items() if key not in existing})
        if version < self._versions.get(namespace, 0):
            # The API server's storage has been restored from a backup: kopf's watch waits for a future version.
            self._restart.set()
        self._versions[namespace] = version
        if all(key in self._cache for key in existing):
            self.synced.add(namespace)
        behind = {key: seen for key, seen in existing.items() if self._cache.version_of(key) < seen}
        if periodic:
            earlier = self._behind.get(namespace, {})
            self._missed[namespace] = any(self._cache.version_of(key) < earlier.get(key, 0) for key in behind)
            self._behind[namespace] = behind


async def _unless(stop: asyncio.Event, probe: Coroutine[Any, Any, tuple[str | None, ...]]) -> tuple[str | None, ...]:
    """The result of a probe; empty if `stop` is set first: an API server may take long to answer."""
    probing, stopping = asyncio.create_task(probe), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((probing, stopping), return_when=asyncio.FIRST_COMPLETED)
        return probing.result() if probing.done() else ()
    finally:
        probing.cancel()
        stopping.cancel()
