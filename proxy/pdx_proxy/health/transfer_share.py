"""The share of prompt tokens that D's received over KV transfer in the last half minute, from their own counters.

The control side polls them, so it costs no request and no worker anything. The `cached_tokens` of answers cannot show
it: under NIXL they are the tokens that P had cached, elsewhere they include D's own prefix cache.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.names import Role
from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engine_metrics import PromptTokens, read_prompt_tokens
from pdx_proxy.engines.probe import page_of
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.telemetry.counters import Outcome

PAUSE_SECONDS: Final = 10.0
"""Between two rounds, varied by a fifth."""
ANSWER_SECONDS: Final = 2.0
_ROUNDS: Final = 4
"""Counts that are kept of each D. Together they cover the last half minute."""
_CONCURRENT: Final = 16
_log: Final = logging.getLogger(__name__)

Counts = deque[PromptTokens]


@dataclass(frozen=True, slots=True)
class Recent:
    """Prompt tokens of a D in the last half minute, those of transfer probes included."""

    total: int
    remote: int
    computed: int


def difference(counts: Counts) -> Recent:
    """Return the tokens between the first and the last count."""
    first, last = counts[0], counts[-1]
    return Recent(
        round(last.total - first.total), round(last.remote - first.remote), round(last.computed - first.computed)
    )


def append(counts: Counts | None, count: PromptTokens) -> Counts:
    """Return the counts with one more. Counters that have fallen show that the engine has restarted."""
    if not counts or count.total < counts[-1].total or count.remote < counts[-1].remote:
        counts = deque(maxlen=_ROUNDS)
    counts.append(count)
    return counts


@dataclass(slots=True)
class TransferShare:
    """Owner of the counts of the last half minute."""

    engines: Engines
    snapshot: Callable[[], Snapshot]
    report: Callable[[], Awaitable[Mapping[str, Any]]]
    """Returns the sum of the workers' reports."""
    rng: random.Random = field(default_factory=random.Random)
    _counts: dict[Start, Counts] = field(default_factory=dict)
    _counted_at: dict[Start, float] = field(default_factory=dict)
    """When each D reported its last count, by the engines' clock."""
    _splits: deque[int] = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT))
    _task: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """Start to poll."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def split(self) -> int:
        """Split requests of this gateway in the same time."""
        return self._splits[-1] - self._splits[0] if self._splits else 0

    @property
    def decode(self) -> dict[str, Recent]:
        """The recent tokens of each D, by name; without D's that have one count only."""
        return {name: difference(counts) for (name, _), counts in self._counts.items() if len(counts) > 1}

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        decode = {
            name: {"promptTokens": d.total, "outside": d.remote, "computed": d.computed}
            for name, d in self.decode.items()
        }
        return {"split": self.split, "decode": decode}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS * self.rng.uniform(0.8, 1.2))
            try:
                await self.poll_all()
            except Exception:
                _log.exception("Polling the sources of prompt tokens failed.")

    async def poll_all(self) -> None:
        """Poll every D once. A D that does not answer keeps its counts for a limited time."""
        decode = [e for e in self.snapshot().everything if e.role is Role.DECODE]
        await asyncio.gather(*(self._poll(endpoint) for endpoint in decode if endpoint.warm))
        oldest = self.engines.clock() - _ROUNDS * PAUSE_SECONDS
        starts = {endpoint.start for endpoint in decode}
        for start in [start for start, at in self._counted_at.items() if start not in starts or at < oldest]:
            del self._counts[start], self._counted_at[start]
        self._splits.append((await self.report())["outcomes"][Outcome.SPLIT])

    async def _poll(self, endpoint: Endpoint) -> None:
        async with self._slots:
            page = await page_of(self.engines, endpoint, "/metrics", ANSWER_SECONDS)
        count = read_prompt_tokens(page, endpoint.spec.rank)
        if count is not None:
            start = endpoint.start
            self._counts[start] = append(self._counts.get(start), count)
            self._counted_at[start] = self.engines.clock()
