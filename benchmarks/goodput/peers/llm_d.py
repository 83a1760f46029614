"""llm-d's router: the scorers of its default configuration with their default weights.

Sources: gateway-api-inference-extension v1.5.0, pkg/epp/config/loader/defaults.go (queue-scorer 2,
kv-cache-utilization-scorer 2, prefix-cache-scorer 3, the picker of the highest score), and
pkg/epp/framework/plugins/scheduling/scorer/{queuedepth,kvcacheutilization,prefix}; the same files in
llm-d/llm-d-router, and there requestcontrol/dataproducer/approximateprefix/types.go: a prefix of at most 131,072
tokens, an LRU index for each engine with as many blocks as the engine reports (autoTune).
Both profiles, prefill and decode, score alike. Metrics are 50 ms old at most (--refresh-metrics-interval). Equal
scores are decided at random (picker/max_score_picker.go).
"""

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from benchmarks.goodput.engine import Engine
from benchmarks.goodput.traces import ENGINE_BLOCK, Request

QUEUE_WEIGHT: Final = 2.0
KV_WEIGHT: Final = 2.0
PREFIX_WEIGHT: Final = 3.0
REFRESH_SECONDS: Final = 0.05
MOST_PREFIX_TOKENS: Final = 131_072


class _Index:
    """The blocks that were sent to one engine, as many as it has, least recently used first."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._held = 0
        self._blocks: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._blocks

    def add(self, request: Request) -> None:
        """Add the blocks of a prompt from its beginning, so that its beginning is evicted first (indexer.go `Add`)."""
        begin = 0
        for key, end in request.prefix:
            if end > MOST_PREFIX_TOKENS:
                break
            if key not in self._blocks:
                self._blocks[key] = (end - begin) // ENGINE_BLOCK
                self._held += self._blocks[key]
            self._blocks.move_to_end(key)
            begin = end
        while self._held > self._most:
            self._held -= self._blocks.popitem(last=False)[1]


class Scorers:
    """The engine with the highest sum of weighted scores."""

    def __init__(self, engines: Sequence[Engine], rng: random.Random) -> None:
        self._engines = engines
        self._rng = rng
        self._indexes = [_Index(engine.pool.size) for engine in engines]
        self._metrics: list[tuple[int, float]] = []
        self._read_at = -1.0

    def choose(self, request: Request, now: float) -> int:
        """See `RolePolicy`."""
        if self._read_at < 0 or now >= self._read_at + REFRESH_SECONDS:
            self._read_at = now
            self._metrics = [(engine.waiting, engine.kv_use) for engine in self._engines]
        scores = self.scores(request)
        best = max(scores)
        place = self._rng.choice([place for place, score in enumerate(scores) if score == best])
        self._indexes[place].add(request)
        return place

    def scores(self, request: Request) -> list[float]:
        """The weighted sum for each engine."""
        queues = [waiting for waiting, _ in self._metrics]
        least, most = min(queues), max(queues)
        found = []
        for index, (waiting, kv_use) in zip(self._indexes, self._metrics, strict=True):
            queue = 1.0 if most == least else (most - waiting) / (most - least)
            prefix = _matched(index, request)
            found.append(QUEUE_WEIGHT * queue + KV_WEIGHT * (1 - kv_use) + PREFIX_WEIGHT * prefix)
        return found

    def answered(self, request: Request, place: int) -> None:
        """Nothing."""

    def ended(self, request: Request, place: int) -> None:
        """Nothing."""


def _matched(index: _Index, request: Request) -> float:
    """The share of the prompt's blocks that the engine may have."""
    found = total = 0
    matches = True
    for key, end in request.prefix:
        if end > MOST_PREFIX_TOKENS:
            break
        total = end
        matches = matches and key in index
        if matches:
            found = end
    return found / total if total else 0.0
