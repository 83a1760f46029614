"""Keeps the cache up to date with one kind of children: list once, then watch."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.kube.backoff import Backoff
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.client import ApiError, Cluster, MissingError, RefusedError, UnavailableError, error_of
from pdx_operator.kube.decoder import decode
from pdx_operator.kube.object_shape import UnusableObjectError, require_identity
from pdx_operator.kube.resources import ChildKey, Kind

_SHORT_WATCH_SECONDS: Final = 2.0
"""A watch that ends sooner is reopened with a delay."""
_BURST: Final = 20
"""Events after which the informer yields to other tasks."""

log = logging.getLogger(__name__)


class Informer:
    """One kind of children, in one namespace or in the whole cluster (None)."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        kind: Kind,
        namespace: str | None,
        random: Callable[[], float],
        clock: Callable[[], float],
        *,
        optional: bool = False,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._kind = kind
        self._namespace = namespace
        self._backoff = Backoff(0.2, 15.0, random)
        self._clock = clock
        self._optional = optional
        """Whether the cluster may lack the kind, or refuse to list it: then there are no such children."""
        self._version = ""
        """The version to watch from; empty: list first."""
        self.last_active = clock()
        """When the API server last answered a list or a watch, or sent an event; a bookmark comes every minute."""
        self.refused = False
        """Whether the operator may not read these objects."""
        self.synced = asyncio.Event()
        """Set once the cache contains every child that existed when the operator started."""

    async def run(self) -> None:
        """Never returns. After any error it continues the watch, or lists again."""
        check = False
        while True:
            try:
                if check and self._version and await self._is_restored():
                    self._version = ""
                check = False
                if not self._version:
                    await self._list()
                began = asyncio.get_running_loop().time()
                await self._watch()
                if asyncio.get_running_loop().time() - began < _SHORT_WATCH_SECONDS:
                    await asyncio.sleep(self._backoff.next())
            except ApiError as error:
                check = True
                absent = isinstance(error, RefusedError | MissingError)
                self.refused = absent and not self._optional
                if absent and self._optional:
                    self._cache.retain_children(self._kind, self._namespace, set())
                    self.synced.set()
                if error.status:
                    self._active()
                if not isinstance(error, UnavailableError):
                    self._version = ""
                delay = max(self._backoff.next(), getattr(error, "after", 0.0))
                level = logging.WARNING if delay > 1 and (self.refused or not absent) else logging.DEBUG
                log.log(level, "Watching %s: %s", self._kind.plural, error)
                await asyncio.sleep(delay)

    async def _list(self) -> None:
        """Read every child, and the version to watch from."""
        existing: set[tuple[str, str]] = set()
        began, version = self._cache.writes, ""
        async for page in self._cluster.pages(self._kind, self._namespace, labelSelector=LABEL_DEPLOYMENT):
            for body in page["items"]:
                if self._store(body, listed=began):
                    existing.add((body["metadata"]["namespace"], body["metadata"]["name"]))
            version = str(page["metadata"]["resourceVersion"])
        self._cache.retain_children(self._kind, self._namespace, existing)
        self._version = version
        self.refused = False
        self._active()
        self.synced.set()

    def _store(self, body: dict[str, Any], *, listed: int | None = None) -> bool:
        """Store a child; False if it is not usable."""
        try:
            self._cache.upsert_child(self._kind, body, listed=listed)
        except UnusableObjectError as error:
            log.warning("Watching %s: %s is skipped", self._kind.plural, error)
            return False
        return True

    def _delete(self, body: dict[str, Any]) -> None:
        """Remove a child that is gone."""
        try:
            require_identity(body)
        except UnusableObjectError as error:
            log.warning("Watching %s: %s is skipped", self._kind.plural, error)
            return
        metadata = body["metadata"]
        child = ChildKey(self._kind.name, metadata["name"])
        self._cache.delete_child(metadata["namespace"], child, metadata["uid"])

    async def _is_restored(self) -> bool:
        """Whether the API server's versions are older than ours: its storage has been restored from a backup."""
        page = await self._cluster.list(self._kind, self._namespace, labelSelector=LABEL_DEPLOYMENT, limit="1")
        return int(page["metadata"]["resourceVersion"]) < int(self._version)

    def _active(self) -> None:
        self.last_active = self._clock()

    async def _watch(self) -> None:
        """Watch until the connection ends. The next watch continues from the last version received.

        Raises ApiError, also for an error among the events.
        """
        selector = {"labelSelector": LABEL_DEPLOYMENT, "resourceVersion": self._version}
        count = 0
        async with self._cluster.watch(self._kind, self._namespace, **selector) as lines:
            self._active()
            async for line in lines:
                self._active()
                self._on_event(_event(line))
                count += 1
                if count == 1:
                    self._backoff.reset()
                if count % _BURST == 0:
                    await asyncio.sleep(0)

    def _on_event(self, event: dict[str, Any]) -> None:
        body = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._store(body)
            case "DELETED":
                self._delete(body)
            case "ERROR":
                raise error_of(int(body.get("code") or 0), {}, str(body.get("message") or ""))
        metadata = body.get("metadata")
        self._version = str((metadata.get("resourceVersion") if isinstance(metadata, dict) else "") or self._version)


def _event(line: bytes) -> dict[str, Any]:
    """The event of a line. Raises ApiError if there is none: then everything is listed again."""
    try:
        event = decode(line)
    except ValueError as error:
        raise ApiError(f"A line of the watch is no JSON: {error}") from error
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict) or "type" not in event:
        raise ApiError("A line of the watch is no event")
    return event
