"""vllm-router 0.1.17: `cache_aware`, `power_of_two` and `round_robin`.

Sources, in the source distribution of that version: src/policies/cache_aware.rs (`select_prepared`, `is_imbalanced`),
src/policies/power_of_two.rs, src/policies/round_robin.rs, src/tree.rs (`evict_tenant_by_size`), and the defaults of the
command line in py_src/vllm_router/router_args.py: cache_threshold 0.3, balance_abs_threshold 64, balance_rel_threshold
1.5, eviction_interval_secs 120, max_tree_size 2^25. (The defaults of the Rust library are 0.5, 32 and 1.1.) Without
--prefill-policy and --decode-policy, both roles have the main policy, each with a state of its own. A worker's load is
its requests: at P until P has answered, at D from the choice to the end of the answer (vllm_pd_router.rs).
"""

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from benchmarks.goodput.engine import Engine
from benchmarks.goodput.peers.base import fewest
from benchmarks.goodput.traces import Request

CACHE_THRESHOLD: Final = 0.3
BALANCE_ABS_THRESHOLD: Final = 64
BALANCE_REL_THRESHOLD: Final = 1.5
EVICTION_SECONDS: Final = 120.0
TREE_TOKENS: Final = 2**25 // 8
"""max_tree_size counts characters; a token is written in 8 (protocols/spec.rs, TOKEN_WIDTH)."""


class _Counted:
    """Requests at each worker."""

    def __init__(self, engines: Sequence[Engine], rng: random.Random) -> None:
        self.loads = [0] * len(engines)
        self.rng = rng

    def take(self, place: int) -> int:
        """Count one more request at a worker."""
        self.loads[place] += 1
        return place

    def answered(self, request: Request, place: int) -> None:
        """Nothing."""

    def ended(self, request: Request, place: int) -> None:
        """One request less."""
        self.loads[place] -= 1


class RoundRobin(_Counted):
    """One worker after the other."""

    def __init__(self, engines: Sequence[Engine], rng: random.Random) -> None:
        super().__init__(engines, rng)
        self._next = -1

    def choose(self, request: Request, now: float) -> int:
        """See `RolePolicy`."""
        self._next = (self._next + 1) % len(self.loads)
        return self.take(self._next)


class PowerOfTwo(_Counted):
    """The less loaded of two workers that are chosen at random; the first of equals."""

    def choose(self, request: Request, now: float) -> int:
        """See `RolePolicy`."""
        if len(self.loads) == 1:
            return self.take(0)
        one, other = self.rng.sample(range(len(self.loads)), 2)
        return self.take(one if self.loads[one] <= self.loads[other] else other)


class _Tree:
    """The prompts that one worker has received: a radix tree there, a set of chained blocks here."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._tokens = 0

    def matched(self, request: Request) -> int:
        """Tokens of the prompt that the worker has received before."""
        found = 0
        for key, end in request.prefix:
            if key not in self._blocks:
                break
            found = end
        return found

    def insert(self, request: Request) -> None:
        """Add a prompt; its end is evicted before its beginning."""
        begin = 0
        sizes = []
        for key, end in request.prefix:
            sizes.append((key, end - begin))
            begin = end
        for key, size in reversed(sizes):
            if key not in self._blocks:
                self._blocks[key] = size
                self._tokens += size
            self._blocks.move_to_end(key)

    def evict(self, most: int) -> None:
        """Remove what was not used for the longest time until at most so many tokens are left."""
        while self._tokens > most:
            self._tokens -= self._blocks.popitem(last=False)[1]


class CacheAware(_Counted):
    """The worker that has received most of the prompt, unless that is little or the loads differ much."""

    def __init__(self, engines: Sequence[Engine], rng: random.Random, tree_tokens: int = TREE_TOKENS) -> None:
        super().__init__(engines, rng)
        self._trees = [_Tree() for _ in engines]
        self._tree_tokens = tree_tokens
        self._evicted_at = 0.0

    def choose(self, request: Request, now: float) -> int:
        """See `RolePolicy`."""
        if now >= self._evicted_at + EVICTION_SECONDS:
            self._evicted_at = now
            for tree in self._trees:
                tree.evict(self._tree_tokens)
        rates = [tree.matched(request) / request.prompt for tree in self._trees]
        best = max(rates)
        use_prefix = not self._imbalanced() and best > CACHE_THRESHOLD
        places = [place for place, rate in enumerate(rates) if not use_prefix or rate == best]
        place = fewest(self.loads, places)
        self._trees[place].insert(request)
        return self.take(place)

    def _imbalanced(self) -> bool:
        least, most = min(self.loads), max(self.loads)
        return most - least > BALANCE_ABS_THRESHOLD and most > least * BALANCE_REL_THRESHOLD
