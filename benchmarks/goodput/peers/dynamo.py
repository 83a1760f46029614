"""Dynamo's KV router: the least cost in blocks, with its default configuration.

Source: ai-dynamo/dynamo, lib/kv-router/src/scheduling: selector/default.rs (`worker_logit`, `minimum_cost_index`),
selector/mod.rs (`row`), config.rs (overlap_score_credit 1, its decay 0, prefill_load_scale 1,
decode_active_request_weight 0, router_temperature 0, use_kv_events, router_queue_threshold 16), and
sequences/prompt_registry.rs (`potential_decode_blocks`).

* A P costs the prompt tokens that it has received and not prefilled, plus those of this prompt less those in its
  cache, plus the blocks of its live requests together with this one. Cache states are exact (KV events).
* A D costs the blocks of its live requests and of this one, without their answers (router_track_output_blocks is off).
* While the tokens to prefill at every P exceed 16 times max_num_batched_tokens, requests wait in the router, first come
  first served.
* Equal costs are decided at random.
"""

import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.goodput.engine import Engine
from benchmarks.goodput.peers.base import Groups
from benchmarks.goodput.simulation import Dispatch, Route
from benchmarks.goodput.traces import ENGINE_BLOCK, Request

QUEUE_THRESHOLD: Final = 16.0


class _Worker:
    """What the router counts for one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.prefill_tokens = 0
        """Of requests that it has not prefilled."""
        self.blocks: Counter[int] = Counter()
        """Live requests by block; a block counts once."""
        self.sizes: dict[int, int] = {}
        self.active = 0
        """Blocks of live requests."""
        self._charged: dict[int, int] = {}

    def add(self, request: Request, *, shares: bool, prefill_tokens: int) -> None:
        """Count a request that is sent."""
        self.prefill_tokens += prefill_tokens
        self._charged[request.index] = prefill_tokens
        if not shares:
            self.active += -(-request.prompt // ENGINE_BLOCK)
            return
        self.active += self.additional(request)
        self.blocks.update(key for key, _ in request.prefix)

    def additional(self, request: Request) -> int:
        """Blocks of a request that no live request has."""
        begin = found = 0
        for key, end in request.prefix:
            if not self.blocks[key]:
                found += (end - begin) // ENGINE_BLOCK
            begin = end
        return found

    def prefilled(self, request: Request) -> None:
        """Its prompt counts no longer."""
        self.prefill_tokens -= self._charged.pop(request.index, 0)

    def remove(self, request: Request, *, shares: bool) -> None:
        """The request has ended."""
        self.prefilled(request)
        if not shares:
            self.active -= -(-request.prompt // ENGINE_BLOCK)
            return
        begin = 0
        for key, end in request.prefix:
            self.blocks[key] -= 1
            if not self.blocks[key]:
                self.active -= (end - begin) // ENGINE_BLOCK
                del self.blocks[key]
            begin = end


class KvRouter:
    """The router of P's and D's, or of aggregated engines."""

    def __init__(self, engines: Sequence[Engine], tokens_in_step: int, rng: random.Random) -> None:
        groups = Groups(engines)
        self._workers = [_Worker(engine) for engine in engines]
        self._prefills = groups.prefill or groups.decode
        self._decodes = groups.decode
        self._splits = bool(groups.prefill)
        self._threshold = QUEUE_THRESHOLD * tokens_in_step
        self._queue: deque[Request] = deque()
        self._rng = rng

    def arrived(self, request: Request, now: float) -> Iterable[Dispatch]:
        """See `Router`; likewise the others."""
        self._queue.append(request)
        return self._serve()

    def answered(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """The prompt is prefilled."""
        if route.prefill is None:
            self._workers[route.decode].prefilled(request)
        else:
            self._workers[route.prefill].remove(request, shares=True)
        return self._serve()

    def ended(self, request: Request, route: Route, now: float) -> Iterable[Dispatch]:
        """The answer is complete."""
        self._workers[route.decode].remove(request, shares=not self._splits)
        return self._serve()

    def polled(self, now: float) -> tuple[float, Iterable[Dispatch]]:
        """Dynamo's engines publish events; nothing is polled."""
        return float("inf"), ()

    def cost(self, request: Request, index: int) -> float:
        """Blocks that an engine that prefills would have to compute and to hold."""
        worker = self._workers[index]
        uncached = request.prompt - worker.engine.pool.cached(request.prefix)
        return (worker.prefill_tokens + uncached) / ENGINE_BLOCK + worker.active + worker.additional(request)

    def _serve(self) -> Iterable[Dispatch]:
        found: list[Dispatch] = []
        while self._queue and any(self._workers[index].prefill_tokens <= self._threshold for index in self._prefills):
            found.append(self._place(self._queue.popleft()))
        return found

    def _place(self, request: Request) -> Dispatch:
        prefill = self._least({index: self.cost(request, index) for index in self._prefills})
        uncached = request.prompt - self._workers[prefill].engine.pool.cached(request.prefix)
        self._workers[prefill].add(request, shares=True, prefill_tokens=uncached)
        if not self._splits:
            return request, Route(prefill)
        decode = self._least({index: float(self._workers[index].active) for index in self._decodes})
        self._workers[decode].add(request, shares=False, prefill_tokens=0)
        return request, Route(decode, prefill)

    def _least(self, costs: dict[int, float]) -> int:
        least = min(costs.values())
        return self._rng.choice([index for index, cost in costs.items() if cost == least])
