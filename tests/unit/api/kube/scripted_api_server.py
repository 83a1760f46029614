"""An API server whose lists and watches follow a script."""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from pdx_api.kube.client import Cluster, UnavailableError
from pdx_api.kube.kinds import Kind

Step = dict[str, Any] | bytes | Exception
"""An event, a line that is none, or what ends the watch."""
UNREACHABLE = UnavailableError("timeout")


def event(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": body}


def bookmark(version: str) -> dict[str, Any]:
    return event("BOOKMARK", {"metadata": {"resourceVersion": version}})


class Script:
    """Its watches, one after the other, send some events and then end or fail."""

    def __init__(self, *watches: Sequence[Step], items: Iterable[dict[str, Any]] = ()) -> None:
        self.watches = list(watches)
        self.last: Sequence[Step] = [UNREACHABLE]
        """The events of every further watch."""
        self.items = list(items)
        self.second_page: Exception | None = None
        """What fails each list after its first page."""
        self.list_error: Exception | None = None
        self.lists = 0
        self.version = "7"
        """The version of the API server."""
        self.later = ""
        """Its version after the first list."""
        self.versions: list[str] = []
        """Where each watch began."""
        self.seconds = 0.0
        """How long every watch lasts."""
        self.now = 0.0

    @property
    def cluster(self) -> Cluster:
        return cast("Cluster", self)

    async def list(self, kind: Kind, namespace: str | None, **query: str) -> dict[str, Any]:
        return {"items": [], "metadata": {"resourceVersion": self.later or self.version}}

    async def pages(self, kind: Kind, namespace: str | None, **query: str) -> AsyncIterator[dict[str, Any]]:
        self.lists += 1
        if self.list_error is not None:
            raise self.list_error
        yield {"items": self.items, "metadata": {"resourceVersion": self.version} if self.version else {}}
        if self.second_page is not None:
            raise self.second_page

    @asynccontextmanager
    async def watch(
        self, kind: Kind, namespace: str | None, seconds: int, **query: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.versions.append(query["resourceVersion"])
        yield self._lines(self.watches.pop(0) if self.watches else self.last)

    async def _lines(self, steps: Iterable[Step]) -> AsyncIterator[bytes]:
        self.now += self.seconds
        for step in steps:
            if isinstance(step, Exception):
                raise step
            yield step if isinstance(step, bytes) else json.dumps(step).encode()
