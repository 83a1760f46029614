"""Keeps the store up to date with one kind of children: list, then watch from there, for ever."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final

from pdx_api.names import LABEL_DEPLOYMENT
from pdx_operator.kube.backoff import Backoff
from pdx_operator.kube.cache import ChildKey, Store
from pdx_operator.kube.client import ApiError, AwayError, Cluster, error_of
from pdx_operator.kube.resources import Kind

_PAGE: Final = 200
"""Objects that one answer may hold: bounds memory while thousands are listed."""
_LASTING_SECONDS: Final = 2.0
"""A watch that ends sooner is opened again with a delay."""
_BURST: Final = 20
"""Events after which others get their turn."""

log = logging.getLogger(__name__)


class Informer:
    """One kind of children, in one namespace or everywhere (None)."""

    def __init__(
        self, cluster: Cluster, store: Store, kind: Kind, namespace: str | None, random: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._kind = kind
        self._namespace = namespace
        self._backoff = Backoff(0.2, 15.0, random)
        self._version = ""
        """What to watch from; empty: list first."""
        self.synced = asyncio.Event()
        """The store holds everything that existed when the operator started."""

    async def run(self) -> None:
        """Never returns. Whatever the API server does, the next thing tried is to go on, or to list again."""
        while True:
            try:
                if not self._version:
                    await self._list()
                began = asyncio.get_running_loop().time()
                await self._follow()
                if asyncio.get_running_loop().time() - began < _LASTING_SECONDS:
                    await asyncio.sleep(self._backoff.next())
            except ApiError as error:
                if not isinstance(error, AwayError):
                    self._version = ""
                delay = max(self._backoff.next(), getattr(error, "after", 0.0))
                log.log(logging.WARNING if delay > 1 else logging.DEBUG, "Watching %s: %s", self._kind.plural, error)
                await asyncio.sleep(delay)

    async def _list(self) -> None:
        """Read everything, and know the version to watch from."""
        seen: set[tuple[str, str]] = set()
        page: dict[str, Any] = {"metadata": {"continue": ""}}
        while True:
            query = {"labelSelector": LABEL_DEPLOYMENT, "limit": str(_PAGE)}
            if token := page["metadata"].get("continue"):
                query["continue"] = token
            page = await self._cluster.list(self._kind, self._namespace, **query)
            for body in page["items"]:
                seen.add((body["metadata"]["namespace"], body["metadata"]["name"]))
                self._store.put_child(self._kind, body)
            if not page["metadata"].get("continue"):
                break
        self._store.keep_children(self._kind, self._namespace, seen)
        self.synced.set()
        self._version = str(page["metadata"]["resourceVersion"])

    async def _follow(self) -> None:
        """Watch until the API server ends it. However it breaks off, the version that came last is good to go on from.

        Raises ApiError, also for an error among the events.
        """
        selector = {"labelSelector": LABEL_DEPLOYMENT, "resourceVersion": self._version}
        count = 0
        async with self._cluster.watch(self._kind, self._namespace, **selector) as lines:
            async for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._learn(json.loads(line))
                count += 1
                if count == 1:
                    self._backoff.reset()
                if count % _BURST == 0:
                    await asyncio.sleep(0)

    def _learn(self, event: dict[str, Any]) -> None:
        body = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._store.put_child(self._kind, body)
            case "DELETED":
                metadata = body["metadata"]
                child = ChildKey(self._kind.name, metadata["name"])
                self._store.drop_child(metadata["namespace"], child, metadata["uid"])
            case "ERROR":
                raise error_of(int(body.get("code") or 0), {}, str(body.get("message") or ""))
        self._version = (body.get("metadata") or {}).get("resourceVersion") or self._version
