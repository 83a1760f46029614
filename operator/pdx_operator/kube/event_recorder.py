"""Events on a PDDeployment: one for each step, written beside the work and never in its way."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pdx_api.names import API_VERSION, FIELD_MANAGER, GROUP, KIND
from pdx_operator.kube.cache import Key
from pdx_operator.kube.client import ApiError, AwayError, Cluster
from pdx_operator.kube.resources import EVENT

log = logging.getLogger(__name__)

_WAITING: Final = 1000
"""Events that may wait to be written; further ones are lost."""
_NOTE: Final = 1000
"""Characters of a note: the API server takes 1024 bytes."""
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was done, or came to be known."""

    reason: str
    """One word in CamelCase."""
    note: str
    """A sentence."""
    warning: bool = False


class EventRecorder:
    """Writes steps as Events, one after the other; what cannot be written is dropped."""

    def __init__(self, cluster: Cluster, instance: str, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._instance = instance
        self._now = now
        self._queue: asyncio.Queue[tuple[Key, dict[str, Any]]] = asyncio.Queue(_WAITING)
        self._numbers = itertools.count()

    def post(self, key: Key, uid: str, step: Step) -> None:
        """Have a step written soon."""
        log.info("%s: %s: %s", key, step.reason, step.note)
        try:
            self._queue.put_nowait((key, self._event(key, uid, step)))
        except asyncio.QueueFull:
            log.warning("%s: too many events wait; this one is lost", key)

    async def run(self) -> None:
        """Never returns."""
        while True:
            key, event = await self._queue.get()
            for _ in range(_ATTEMPTS):
                try:
                    await self._cluster.create(EVENT, key.namespace, event)
                except AwayError:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                except ApiError as error:
                    log.debug("%s: event not written: %s", key, error)
                break

    def _event(self, key: Key, uid: str, step: Step) -> dict[str, Any]:
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
            "type": "Warning" if step.warning else "Normal",
            "reason": step.reason,
            "action": step.reason,
            "note": step.note.encode()[:_NOTE].decode(errors="ignore"),
            "regarding": regarding,
            "reportingController": f"{GROUP}/operator",
            "reportingInstance": self._instance or FIELD_MANAGER,
        }
