"""The owner of the deaths of engines and of the verdicts that follow, for all workers."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from pdx_proxy.admission.quarantine import Casualty, Deaths, Verdicts, is_majority
from pdx_proxy.endpoints.events import EndpointEvent, HandoffEvent

WorkerEvent = EndpointEvent | HandoffEvent | Casualty
WorkerEventSink = Callable[[WorkerEvent], None]
_KEY_PREFIX: Final = "key "
"""The beginning of the name of a client with an API key."""
_log: Final = logging.getLogger(__name__)


class QuarantineKeeper:
    """Receives casualties, and publishes verdicts to all workers."""

    def __init__(
        self,
        clock: Callable[[], float],
        report: Callable[[], Awaitable[dict[str, Any]]],
        publish: Callable[[Verdicts], None],
    ) -> None:
        """`report` returns the sum of the workers' reports."""
        self._clock = clock
        self._report = report
        self._publish = publish
        self._deaths = Deaths()
        self._key = int.from_bytes(os.urandom(8))
        self._verdicts = Verdicts(self._key)
        self._judged = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Publish the key."""
        self._publish(self._verdicts)

    async def stop(self) -> None:
        """Judge nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, casualty: Casualty) -> None:
        """Receive a casualty from a worker."""
        self._deaths.add(casualty, self._clock())
        self._judged = False
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._judge())

    async def _judge(self) -> None:
        while not self._judged:
            self._judged = True
            clients = self._deaths.clients()
            if not clients and not self._verdicts.bodies and not self._verdicts.clients:
                continue
            senders: dict[str, Any] = {}
            if any(not client.startswith(_KEY_PREFIX) for client in clients):
                senders = (await self._report()).get("senders", {})
            requests, by_address = senders.get("requests", 0), senders.get("addresses", {})
            is_crowd = partial(is_majority, requests=requests, by_address=by_address)
            before, self._verdicts = self._verdicts, self._deaths.verdicts(self._key, self._clock(), is_crowd)
            for client, _ in self._verdicts.bodies.keys() - before.bodies.keys():
                _log.warning("a request of the client %r is refused for a while: engines died of it.", client)
            self._publish(self._verdicts)
