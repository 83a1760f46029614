"""Keeps a store up to date with the objects of one kind: list them once, then watch them."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

from pdx_api.kube.backoff import Backoff
from pdx_api.kube.client import (
    ApiError,
    Cluster,
    ExpiredError,
    Json,
    MissingError,
    RefusedError,
    UnavailableError,
    UnreadableAnswerError,
    error_of,
    metadata_of,
)
from pdx_api.kube.decoder import decode
from pdx_api.kube.kinds import Kind

WATCH_SECONDS: Final = 120
"""Longest duration of one watch; a random part of up to a fourth is subtracted.

Watches are this short because a proxy between the two may keep a connection open after it has lost the API server.
"""
_LASTING_SECONDS: Final = 1.0
"""A watch that lasted this long shows that the API server works, even without an event."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_ABSENT_PAUSE: Final = 15.0
"""Before a kind is listed again that does not exist, or that the program may not read."""
_BURST: Final = 20
"""Events after which the informer yields to other tasks."""

log = logging.getLogger(__name__)


class Store(Protocol):
    """Where an informer puts objects. It handles an unusable object itself, and keeps its objects during an outage."""

    def begin(self) -> None:
        """A list begins. It may fail and begin again."""

    def put(self, body: Json, /) -> None:
        """An object of the list, or after the list a new version of an object."""

    def end(self) -> None:
        """The list is complete: objects that were not in it do not exist."""

    def delete(self, body: Json, /) -> None:
        """An object is gone."""


class Informer:
    """The objects of one kind with a label, in one namespace or in the whole cluster (None)."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        kind: Kind,
        namespace: str | None,
        selector: str,
        random: Callable[[], float],
        clock: Callable[[], float],
        *,
        optional: bool = False,
        trusted_seconds: float = math.inf,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._random = random
        self._clock = clock
        self._optional = optional
        """Whether the cluster may lack the kind, or refuse to list it: then there are no such objects."""
        self._trusted_seconds = trusted_seconds
        """How long the events of watches alone are trusted. Then all objects are listed again."""
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, random)
        self._absent = Backoff(_FIRST_PAUSE, _ABSENT_PAUSE, random)
        self._version = ""
        """The version to watch from; empty: list first."""
        self._listed = -math.inf
        """When the last complete list ended."""
        self._lasted = False
        """Whether the present watch had worked for a while when it ended."""
        self._failing = False
        """Whether the last logged line reports that the objects cannot be watched."""
        self.last_active = clock()
        """When the API server last answered a list or a watch, or sent an event."""
        self.refused = False
        """Whether the program may not read these objects."""
        self.synced = asyncio.Event()
        """Set once the store has every object that existed at the start."""

    async def run(self) -> None:
        """Never returns. After any error it continues the watch, or lists again."""
        failed = False
        while True:
            pause = 0.0
            self._lasted = False
            try:
                if failed and self._version and await self._is_restored():
                    self._version = ""
                failed = False
                if not self._version or self._clock() - self._listed > self._trusted_seconds:
                    await self._list()
                await self._watch()
            except ApiError as error:
                failed = True
                pause = self._on_error(error)
            await asyncio.sleep(max(self._backoff.next(), pause))

    def _on_error(self, error: ApiError) -> float:
        """Decide where to continue after an error, log the first one of an outage, and return the least pause."""
        absent = isinstance(error, RefusedError | MissingError)
        self.refused = absent and not self._optional
        if absent and self._optional:
            self._store.begin()
            self._store.end()
            self.synced.set()
        if error.status:
            self._active()
        expired = isinstance(error, ExpiredError)
        if expired and self._version and self._clock() - self._listed >= _LASTING_SECONDS:
            self._backoff.reset()  # after an outage, the API server answers again
        if not isinstance(error, UnavailableError):
            self._version = ""
        expected = self._lasted or expired or (absent and self._optional)
        if expected or self._failing:
            log.debug("Watching %s: %s", self._kind.plural, error)
        else:
            self._failing = True
            log.warning("cannot watch %s, keeps those that it knows: %s.", self._kind.plural, str(error).rstrip("."))
        return self._absent.next() if absent else float(getattr(error, "after", 0.0))

    async def _list(self) -> None:
        """Read every object, and the version to watch from."""
        self._store.begin()
        version = ""
        async for page in self._cluster.pages(self._kind, self._namespace, labelSelector=self._selector):
            for body in page["items"]:
                self._store.put(body)
            version = _version_of(page)
        self._store.end()
        self._version = version
        self._listed = self._clock()
        self._absent.reset()
        self.refused = False
        self._active()
        self.synced.set()

    async def _is_restored(self) -> bool:
        """Whether the API server's versions are older than ours: its storage has been restored from a backup."""
        page = await self._cluster.list(self._kind, self._namespace, labelSelector=self._selector, limit="1")
        version = _version_of(page)
        return version.isdecimal() and self._version.isdecimal() and int(version) < int(self._version)

    def _active(self) -> None:
        self.last_active = self._clock()

    async def _watch(self) -> None:
        """Watch until the connection ends. The next watch continues from the last version received.

        Raises ApiError, also for an error among the events.
        """
        query = {"labelSelector": self._selector, "resourceVersion": self._version}
        seconds = int(WATCH_SECONDS * (1 - self._random() / 4))
        async with self._cluster.watch(self._kind, self._namespace, seconds, **query) as lines:
            self._active()
            opened = self._clock()
            if self._failing:
                self._failing = False
                log.warning("watches %s again.", self._kind.plural)
            try:
                await self._follow(lines)
            finally:
                self._lasted = self._clock() - opened >= _LASTING_SECONDS
                if self._lasted:
                    self._backoff.reset()

    async def _follow(self, lines: AsyncIterator[bytes]) -> None:
        count = 0
        async for line in lines:
            self._active()
            self._on_event(_event(line))
            self._backoff.reset()
            count += 1
            if count % _BURST == 0:
                await asyncio.sleep(0)

    def _on_event(self, event: dict[str, Any]) -> None:
        body = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._store.put(body)
            case "DELETED":
                self._store.delete(body)
            case "ERROR":
                code = body.get("code")
                raise error_of(code if isinstance(code, int) else 0, {}, str(body.get("message") or ""))
        metadata = body.get("metadata")
        self._version = str((metadata.get("resourceVersion") if isinstance(metadata, dict) else "") or self._version)


def _version_of(page: Json) -> str:
    """The version of a list. Raises UnreadableAnswerError if it has none."""
    version = metadata_of(page).get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise UnreadableAnswerError("The API server's answer is a list without a version")
    return version


def _event(line: bytes) -> dict[str, Any]:
    """The event of a line. Raises ApiError if there is none: then everything is listed again."""
    try:
        event = decode(line)
    except ValueError as error:
        raise ApiError(f"A line of the watch is no JSON: {error}") from error
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict) or "type" not in event:
        raise ApiError("A line of the watch is no event")
    return event
