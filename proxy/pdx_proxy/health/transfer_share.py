"""How many of the prompt tokens that D's have served of late came from outside, by the D's own counters.

Asked by the control side: no request waits for it, and workers do nothing for it. An answer's `cached_tokens` cannot
tell: under NIXL they are those that P had cached, elsewhere D's own prefix cache is among them.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from pdx_api.names import Role
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engines import Engines
from pdx_proxy.engines.probe import page_of
from pdx_proxy.health.load_poller import values
from pdx_proxy.telemetry.counters import Outcome

PAUSE_SECONDS: Final = 10.0
"""Between two rounds, a fifth more or less."""
ANSWER_SECONDS: Final = 2.0
_ROUNDS: Final = 4
"""Counts that are kept of each D: together they tell of the last half minute."""
_AT_A_TIME: Final = 16
_TOKENS: Final = b"\nvllm:prompt_tokens_by_source_total{"
_OUTSIDE: Final = b'source="external_kv_transfer"'
_COMPUTED: Final = b'source="local_compute"'
_log: Final = logging.getLogger(__name__)

Key = tuple[str, int]
"""Name and start of an endpoint."""


@dataclass(frozen=True, slots=True)
class Count:
    """What a D has counted since its start."""

    prompt: float
    outside: float
    """Prompt tokens that came through its connector."""
    computed: float
    """Those that it has computed; the others were in its own prefix cache."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What came to a D of late, canaries included."""

    prompt: int
    outside: int
    computed: int


def read_count(page: bytes, rank: int | None = None) -> Count | None:
    """What a metrics page says of an engine, or of one of its ranks; None unless it says it."""
    label = () if rank is None else (b'engine="%d"' % rank,)
    every, outside = list(values(page, _TOKENS, *label)), list(values(page, _TOKENS, _OUTSIDE, *label))
    if not outside or not all(map(isfinite, every)):
        return None
    return Count(sum(every), sum(outside), sum(values(page, _TOKENS, _COMPUTED, *label)))


def arrived(counts: "deque[Count]") -> Arrived:
    """What lies between the first and the last of them."""
    first, last = counts[0], counts[-1]
    return Arrived(
        round(last.prompt - first.prompt),
        round(last.outside - first.outside),
        round(last.computed - first.computed),
    )


def counted(before: "deque[Count] | None", count: Count) -> "deque[Count]":
    """The counts with one more; an engine that counts from 0 again is a new one."""
    if not before or count.prompt < before[-1].prompt or count.outside < before[-1].outside:
        before = deque(maxlen=_ROUNDS)
    before.append(count)
    return before


@dataclass(slots=True)
class TransferShare:
    """Owner of what is known of the last half minute."""

    engines: Engines
    snapshot: Callable[[], Snapshot]
    report: Callable[[], Awaitable[Mapping[str, Any]]]
    """The sum of the workers' reports."""
    rng: random.Random = field(default_factory=random.Random)
    _counts: "dict[Key, deque[Count]]" = field(default_factory=dict)
    _asked: "dict[Key, float]" = field(default_factory=dict)
    """When each told its last count, by the engines' clock."""
    _splits: "deque[int]" = field(default_factory=lambda: deque(maxlen=_ROUNDS))
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_A_TIME))
    _task: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def split(self) -> int:
        """Requests of this gateway that went over P and D meanwhile."""
        return self._splits[-1] - self._splits[0] if self._splits else 0

    @property
    def decode(self) -> dict[str, Arrived]:
        """What came to each D, by name; without those that were not asked twice."""
        return {name: arrived(counts) for (name, _), counts in self._counts.items() if len(counts) > 1}

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        told = {
            name: {"promptTokens": d.prompt, "outside": d.outside, "computed": d.computed}
            for name, d in self.decode.items()
        }
        return {"split": self.split, "decode": told}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS * self.rng.uniform(0.8, 1.2))
            try:
                await self.ask_all()
            except Exception:
                _log.exception("Asking engines where their prompts came from failed.")

    async def ask_all(self) -> None:
        """One round. Of an engine that does not answer the counts of before are kept, but not for ever."""
        decode = [e for e in self.snapshot().everything if e.role is Role.DECODE]
        await asyncio.gather(*(self._ask(endpoint) for endpoint in decode if endpoint.warm))
        oldest = self.engines.clock() - _ROUNDS * PAUSE_SECONDS
        keys = {(endpoint.name, endpoint.generation) for endpoint in decode}
        for key in [key for key, at in self._asked.items() if key not in keys or at < oldest]:
            del self._counts[key], self._asked[key]
        self._splits.append((await self.report())["outcomes"][Outcome.SPLIT])

    async def _ask(self, endpoint: Endpoint) -> None:
        async with self._slots:
            page = await page_of(self.engines, endpoint, "/metrics", ANSWER_SECONDS)
        count = read_count(page, endpoint.spec.rank)
        if count is not None:
            key = (endpoint.name, endpoint.generation)
            self._counts[key] = counted(self._counts.get(key), count)
            self._asked[key] = self.engines.clock()
