"""Three traces made by a seeded generator: nothing is shared, one long prompt is, agents whose turns grow."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from benchmarks.goodput.traces import BLOCK_TOKENS, Chains, Request, Trace

_LONGEST: Final = 100_000
"""Tokens of a prompt, so that it fits into an engine with 131,072 tokens of context."""
_COMMON: Final = 16
"""Blocks of the prompt that all share (8,192 tokens)."""
_SYSTEM: Final = 4
"""Blocks of the agents' system prompt (2,048 tokens)."""

Row = tuple[float, list[int], int, int]
"""Seconds, block ids (empty: shares nothing), prompt tokens, output tokens."""


def no_sharing(rng: random.Random) -> Iterator[Row]:
    """Prompts of 4,000 tokens in the median and answers of 200, without a common beginning."""
    at = 0.0
    while True:
        at += rng.expovariate(4.0)
        yield at, [], _around(rng, 4_000, 0.9), _around(rng, 200, 0.7)


def shared_prompt(rng: random.Random) -> Iterator[Row]:
    """All prompts begin with the same 8,192 tokens; 1,000 of their own follow in the median."""
    at, fresh = 0.0, _COMMON
    while True:
        at += rng.expovariate(8.0)
        own = _around(rng, 1_000, 0.8)
        ids = [*range(_COMMON), *range(fresh, fresh + _blocks(own))]
        fresh += _blocks(own)
        yield at, ids, _COMMON * BLOCK_TOKENS + own, _around(rng, 200, 0.7)


def agents(rng: random.Random) -> Iterator[Row]:
    """Agents with a common system prompt. Each request repeats the earlier ones, with answers and tools' results."""
    at, fresh = 0.0, _SYSTEM
    while True:
        at += rng.expovariate(0.35)
        next_at, ids, tokens = at, list(range(_SYSTEM)), _SYSTEM * BLOCK_TOKENS + _around(rng, 2_000, 0.6)
        for _ in range(min(60, 1 + int(rng.expovariate(1 / 14)))):
            if tokens > _LONGEST:
                break
            added = _blocks(tokens) - len(ids)
            ids = [*ids, *range(fresh, fresh + added)]
            fresh += added
            output = _around(rng, 150, 0.6)
            yield next_at, ids, tokens, output
            if tokens % BLOCK_TOKENS:
                ids = ids[:-1]  # the last block was not full, so it is another one in the next turn
            tokens += output + _around(rng, 900, 0.8)
            next_at += 3.0 + rng.expovariate(1 / 9)


SYNTHETIC: Final[Mapping[str, Callable[[random.Random], Iterator[Row]]]] = {
    "no-sharing": no_sharing,
    "shared-prompt": shared_prompt,
    "agents": agents,
}


def generate(name: str, seed: int, count: int = 6_000) -> Trace:
    """One of the three traces. Equal seeds give equal traces."""
    chains = Chains()
    rows = sorted(islice(SYNTHETIC[name](random.Random(seed)), count), key=lambda row: row[0])
    requests = []
    for index, (at, ids, tokens, output) in enumerate(rows):
        prefix = chains.prefix(ids, tokens) if ids else chains.alone(tokens)
        requests.append(Request(index, at - rows[0][0], tokens, output, prefix))
    return Trace(name, tuple(requests))


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def _around(rng: random.Random, median: float, spread: float) -> int:
    """A length whose logarithm is normally distributed."""
    return max(1, min(_LONGEST, round(rng.lognormvariate(math.log(median), spread))))
