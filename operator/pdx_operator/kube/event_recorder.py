"""Writes Kubernetes Events on a PDDeployment, in the background: no reconcile waits for them."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from pdx_api.kube.client import ApiError, Cluster, UnavailableError
from pdx_api.kube.kinds import EVENT
from pdx_api.names import API_VERSION, FIELD_MANAGER, GROUP, KIND
from pdx_operator.kube.resources import Event, Key

log = logging.getLogger(__name__)

_QUEUE_SIZE: Final = 1000
"""Events that may wait to be written; further ones are dropped."""
_NOTE_BYTES: Final = 1000
"""The API server accepts notes of 1024 bytes."""
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 2.0


class EventRecorder:
    """Writes Events one after the other, and drops those that the API server rejects."""

    def __init__(self, cluster: Cluster, instance: str, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._instance = instance
        self._now = now
        self._queue: asyncio.Queue[tuple[Key, dict[str, Any]]] = asyncio.Queue(_QUEUE_SIZE)
        self._numbers = itertools.count()

    def record(self, key: Key, uid: str, event: Event) -> None:
        """Log an Event and queue it."""
        log.info("%s: %s: %s", key, event.reason, event.note)
        try:
            self._queue.put_nowait((key, self._manifest(key, uid, event)))
        except asyncio.QueueFull:
            log.warning("%s: the queue of events is full; this event is dropped", key)

    async def run(self) -> None:
        """Write queued Events. Never returns."""
        while True:
            key, manifest = await self._queue.get()
            for _ in range(_ATTEMPTS):
                try:
                    await self._cluster.create(EVENT, key.namespace, manifest)
                except UnavailableError:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                except ApiError as error:
                    log.debug("%s: event not written: %s", key, error)
                break

    def _manifest(self, key: Key, uid: str, event: Event) -> dict[str, Any]:
        now = self._now()
        regarding = {"apiVersion": API_VERSION, "kind": KIND, "namespace": key.namespace, "name": key.name, "uid": uid}
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {
                "namespace": key.namespace,
                "name": f"{key.name[:200]}.{int(now.timestamp() * 1e6):x}{next(self._numbers) % 0x1000:03x}",
            },
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "action": event.reason,
            "note": event.note.encode()[:_NOTE_BYTES].decode(errors="ignore"),
            "regarding": regarding,
            "reportingController": f"{GROUP}/operator",
            "reportingInstance": self._instance or FIELD_MANAGER,
        }
