"""Reads each warm engine's metrics and models: its progress, its models, and whether its queue is too long for a push.

One request to `/metrics` and one to `/v1/models` of each engine every ten seconds, for all workers of the gateway.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from pdx_api.connectors.families import Push
from pdx_api.names import Role
from pdx_proxy.config.settings import Address
from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.endpoints.events import Cause, EndpointEvent, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engine_metrics import read_finished, read_progress, read_waiting
from pdx_proxy.engines.probe import page_of
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.health.progress import Observed, QueueSample, observe, queue_seconds
from pdx_proxy.http.routes import MODELS

PAUSE_SECONDS: Final = 10.0
"""Between two rounds, varied by a fifth."""
ANSWER_SECONDS: Final = 2.0
_CONCURRENT: Final = 16
_log: Final = logging.getLogger(__name__)


def push_survives(endpoint: Endpoint, handoff_seconds: float) -> float | None:
    """Return how long a finished P keeps KV for a D that queues the request, in seconds; None if D renews P's lease.

    In pull orders D sends heartbeats from the moment that its scheduler has the request (vLLM 0.32
    nixl/base_scheduler.py, `on_new_request`). In push orders P does not recognize the ID in them. See docs/settling.md.
    """
    family = endpoint.family
    if not isinstance(family, Push):
        return None
    return handoff_seconds if family.kept_seconds is None else family.kept_seconds


class EngineWatch:
    """Owner of what the metrics of engines have shown."""

    def __init__(
        self,
        engines: Engines,
        snapshot: Callable[[], Snapshot],
        report: Callable[[EndpointEvent], None],
        set_long_queue: Callable[[Endpoint, bool], None],
        set_models: Callable[[Endpoint, bytes], None],
        rng: random.Random | None = None,
    ) -> None:
        """`set_long_queue` receives, for each D of a push, whether its queue is longer than a push survives.

        `set_models` receives the page with the models of each engine that answers clients: adapters may come and go.
        """
        self._engines = engines
        self._snapshot = snapshot
        self._report = report
        self._set_long_queue = set_long_queue
        self._set_models = set_models
        self._random = rng or random.Random()  # noqa: S311 (spreads load)
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._observed: dict[Start, Observed] = {}
        self._queues: dict[Start, QueueSample] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS * self._random.uniform(0.8, 1.2))
            try:
                await self.poll_all()
            except Exception:
                _log.exception("Reading the metrics of the engines failed.")

    async def poll_all(self) -> None:
        """Read the metrics of every warm engine once. An engine that does not answer shows nothing."""
        by_address: dict[Address, list[Endpoint]] = {}
        for endpoint in self._snapshot().everything:
            if endpoint.warm:
                by_address.setdefault(endpoint.address, []).append(endpoint)
        starts = {e.start for ranks in by_address.values() for e in ranks}
        self._observed = {start: seen for start, seen in self._observed.items() if start in starts}
        self._queues = {start: sample for start, sample in self._queues.items() if start in starts}
        await asyncio.gather(*map(self._poll, by_address.values()))

    async def _poll(self, ranks: list[Endpoint]) -> None:
        async with self._slots:
            page = await page_of(self._engines, ranks[0], "/metrics", ANSWER_SECONDS)
            if ranks[0].role is not Role.PREFILL:
                self._set_models(ranks[0], await page_of(self._engines, ranks[0], MODELS, ANSWER_SECONDS))
        if page:
            for endpoint in ranks:
                self.read(endpoint, page, self._engines.clock())

    def read(self, endpoint: Endpoint, page: bytes, now: float) -> None:
        """Evaluate one page of metrics."""
        self._read_progress(endpoint, page, now)
        if endpoint.role is not Role.PREFILL:
            self._read_queue(endpoint, page, now)

    def _read_progress(self, endpoint: Endpoint, page: bytes, now: float) -> None:
        limit, start = self._engines.settings.health.stalled_seconds, endpoint.start
        progress = read_progress(page, endpoint.spec.rank)
        if progress is None or not limit:
            return
        seen = self._observed[start] = observe(self._observed.get(start), progress, now)
        if seen.stalled(now, limit):
            reason = f"{progress.running:g} requests run and have made no progress for {now - seen.since:.0f} s"
            self._report(Suspect(*start, reason, Cause.STALLED))

    def _read_queue(self, endpoint: Endpoint, page: bytes, now: float) -> None:
        survives = push_survives(endpoint, self._engines.deadlines.handoff)
        waiting, finished = read_waiting(page, endpoint.spec.rank), read_finished(page, endpoint.spec.rank)
        if survives is None or waiting is None or finished is None:
            return
        start = endpoint.start
        before, sample = self._queues.get(start), QueueSample(waiting.capacity, finished, now)
        self._queues[start] = sample
        self._set_long_queue(endpoint, queue_seconds(before, sample) > survives)
