"""The prefix cache of a simulated engine, and the scheduler with it."""

import random

import pytest

from pdx_sim.core.blocks import BlockPool, Prefix
from pdx_sim.core.prefix_cache import PrefixCache
from pdx_sim.core.scheduler import Limits, Scheduler, StepCost, Work

BLOCK = 4
COST = StepCost(base=0.010, per_sequence=0.001, per_token=0.0001)


def prefix(name: str, parts: int, blocks: int = 1) -> Prefix:
    """Each letter of a name starts the hashes of one part, so that equal beginnings have equal hashes."""
    return tuple((hash((name[: i + 1], i)), (i + 1) * blocks * BLOCK) for i in range(parts))


def fill(cache: PrefixCache, owner: str, blocks: int, of: Prefix) -> None:
    assert cache.take_prompt(owner, blocks, of) is not None
    cache.fill(owner, blocks * BLOCK)


def test_what_a_prompt_has_computed_is_found_by_the_next_one_while_it_runs_and_afterwards() -> None:
    cache = PrefixCache(10, BLOCK)
    fill(cache, "a", 3, prefix("xyz", 3))
    assert cache.take_prompt("b", 3, prefix("xyw", 3)) == 2 * BLOCK
    assert (cache.held, cache.of("b")) == (4, 3), "two blocks are used in common"
    cache.free("a")
    assert cache.held == 3
    cache.free("b")
    assert (cache.held, cache.cached(prefix("xyz", 3))) == (0, 3 * BLOCK)
    assert (cache.hits, cache.queries) == (2 * BLOCK, 6 * BLOCK)


def test_what_is_not_computed_is_not_found() -> None:
    cache = PrefixCache(10, BLOCK)
    cache.take_prompt("a", 3, prefix("xyz", 3))
    assert cache.cached(prefix("xyz", 3)) == 0
    cache.fill("a", 2 * BLOCK + 1)
    assert cache.cached(prefix("xyz", 3)) == 2 * BLOCK, "only full blocks"


def test_the_prompt_that_was_freed_first_is_evicted_first_and_its_tail_before_its_beginning() -> None:
    cache = PrefixCache(6, BLOCK)
    fill(cache, "a", 3, prefix("abc", 3))
    fill(cache, "b", 3, prefix("def", 3))
    cache.free("a")
    cache.free("b")
    assert cache.take("c", 1)
    assert (cache.cached(prefix("abc", 3)), cache.cached(prefix("def", 3))) == (2 * BLOCK, 3 * BLOCK)
    assert cache.take("c", 2)
    assert (cache.cached(prefix("abc", 3)), cache.cached(prefix("def", 3))) == (0, 3 * BLOCK)
    assert cache.evicted == 3


def test_a_prompt_that_is_used_again_is_evicted_last() -> None:
    cache = PrefixCache(6, BLOCK)
    fill(cache, "a", 3, prefix("abc", 3))
    cache.free("a")
    fill(cache, "b", 3, prefix("def", 3))
    cache.free("b")
    cache.take_prompt("c", 3, prefix("abc", 3))
    cache.free("c")
    assert cache.take("d", 3)
    assert (cache.cached(prefix("abc", 3)), cache.cached(prefix("def", 3))) == (3 * BLOCK, 0)


def test_blocks_in_use_are_not_evicted() -> None:
    cache = PrefixCache(4, BLOCK)
    fill(cache, "a", 3, prefix("abc", 3))
    assert cache.take_prompt("b", 3, prefix("xyz", 3)) is None
    assert not cache.take("b", 2)
    assert (cache.cached(prefix("abc", 3)), cache.held) == (3 * BLOCK, 3)


def test_a_prompt_that_is_found_needs_fewer_blocks() -> None:
    cache = PrefixCache(4, BLOCK)
    fill(cache, "a", 3, prefix("abc", 3))
    assert cache.take_prompt("b", 4, prefix("abcd", 4)) == 3 * BLOCK
    assert cache.free_blocks == 0


def test_clearing_forgets_what_nobody_uses() -> None:
    cache = PrefixCache(8, BLOCK)
    fill(cache, "a", 3, prefix("abc", 3))
    fill(cache, "b", 3, prefix("def", 3))
    cache.free("a")
    cache.clear()
    assert (cache.cached(prefix("abc", 3)), cache.cached(prefix("def", 3)), cache.free_blocks) == (0, 3 * BLOCK, 5)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_never_lost_nor_invented(seed: int) -> None:
    rng = random.Random(seed)
    cache = PrefixCache(30, BLOCK)
    live: list[str] = []
    for number in range(400):
        if live and rng.random() < 0.45:
            cache.free(live.pop(rng.randrange(len(live))))
        else:
            parts = rng.randint(1, 6)
            owner, of = str(number), prefix("".join(rng.choice("ab") for _ in range(parts)), parts)
            if cache.take_prompt(owner, parts + rng.randint(0, 2), of) is not None:
                live.append(owner)
                cache.fill(owner, rng.randint(0, parts) * BLOCK)
                cache.take(owner, rng.randint(0, 1))
        assert 0 <= cache.free_blocks <= cache.size
        assert cache._idle == sum(cache._evictable.values()) <= cache.free_blocks
    for owner in live:
        cache.free(owner)
    assert (cache.free_blocks, cache.owners) == (cache.size, {})


def engine(pool: BlockPool) -> Scheduler:
    return Scheduler(Limits(4, 100, 0, BLOCK), COST, pool)


def test_a_cached_prefix_is_not_computed_again_but_the_last_token_of_a_prompt_is() -> None:
    loop = engine(PrefixCache(100, BLOCK))
    steps = []
    for name in ("a", "b"):
        work = Work(name, 12, 1, prefix=prefix("abc", 3))
        loop.add(work)
        _, step = loop.schedule()
        assert step is not None
        steps.append([tokens for _, tokens in step.prefills])
        loop.complete(step)
        loop._pool.free(name)
    assert steps == [[12], [1]]


def test_many_decode_steps_at_once_are_the_same_as_one_by_one() -> None:
    ends = []
    for at_once in (False, True):
        loop, now, found = engine(BlockPool(100)), 0.0, {}
        for name, output in (("a", 9), ("b", 30), ("c", 17)):
            loop.add(Work(name, 10, output))
        while True:
            _, step = loop.schedule()
            if step is None:
                break
            times = loop.repeats(step) if at_once else 1
            now += step.seconds * times
            for work in loop.complete(step, times):
                if work.is_done:
                    found[work.owner] = round(now, 9)
                    loop._pool.free(work.owner)
        ends.append(found)
    assert ends[0] == ends[1]
    assert len(ends[0]) == 3


def test_a_step_with_a_prefill_passes_once_and_a_step_whose_blocks_run_out_not_too_often() -> None:
    loop = engine(BlockPool(6))
    loop.add(Work("a", 8, 100))
    _, step = loop.schedule()
    assert step is not None
    assert loop.repeats(step) == 1
    loop.complete(step)
    _, step = loop.schedule()
    assert step is not None
    assert loop.repeats(step) <= 4 * BLOCK
