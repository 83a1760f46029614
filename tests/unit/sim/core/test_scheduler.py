"""The step loop's scheduler: who computes how many tokens in which step, and how long the step takes."""

import random
from dataclasses import replace

import pytest

from pdx_sim.core.blocks import BlockPool
from pdx_sim.core.scheduler import Limits, Scheduler, Step, StepCost, Work

COST = StepCost(base=0.010, per_sequence=0.001, per_token=0.0001)
LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=100, long_prefill_token_threshold=0, block_size=10)


def scheduler(blocks: int = 1000, **limits: int) -> tuple[Scheduler, BlockPool]:
    pool = BlockPool(blocks)
    return Scheduler(replace(LIMITS, **limits), COST, pool), pool


def work(name: str, prompt: int = 20, output: int = 5, loads: bool = False) -> Work:
    return Work(name, prompt, output, loads=loads)


def pass_step(loop: Scheduler) -> Step:
    """Plan a step and let it pass."""
    _, step = loop.schedule()
    assert step is not None
    loop.complete(step)
    return step


def chunks(step: Step) -> dict[str, int]:
    return {each.owner: tokens for each, tokens in step.prefills}


def names(works: "list[Work] | tuple[Work, ...]") -> list[str]:
    return [each.owner for each in works]


def test_a_step_costs_its_base_its_sequences_and_its_prompt_tokens() -> None:
    loop, _ = scheduler()
    loop.add(work("a", prompt=30))
    assert pass_step(loop).seconds == pytest.approx(0.010 + 0.001 + 30 * 0.0001)
    assert pass_step(loop).seconds == pytest.approx(0.010 + 0.001)
    loop.add(work("b", prompt=80))
    mixed = pass_step(loop)
    assert (names(mixed.decodes), chunks(mixed)) == (["a"], {"b": 80})
    assert mixed.seconds == pytest.approx(0.010 + 2 * 0.001 + 80 * 0.0001), "the prefill slows the decode"


def test_running_sequences_take_their_tokens_first() -> None:
    loop, _ = scheduler()
    loop.add(work("a"))
    pass_step(loop)
    loop.add(work("b", prompt=250))
    loop.add(work("c", prompt=50))
    assert [chunks(pass_step(loop)) for _ in range(2)] == [{"b": 99}, {"b": 99}]
    assert chunks(pass_step(loop)) == {"b": 52, "c": 47}, "what is left goes to the next in the queue"


def test_a_long_prefill_leaves_tokens_to_others_but_not_when_it_is_alone() -> None:
    loop, _ = scheduler(long_prefill_token_threshold=30)
    loop.add(work("a", prompt=250))
    assert chunks(pass_step(loop)) == {"a": 100}
    loop.add(work("b", prompt=50))
    assert chunks(pass_step(loop)) == {"a": 30, "b": 30}


def test_prompts_wait_for_their_step_while_others_decode() -> None:
    loop, _ = scheduler(prefill_schedule_interval=3)
    loop.add(work("a", prompt=150, output=20))
    assert [chunks(pass_step(loop)) for _ in range(2)] == [{"a": 100}, {"a": 50}], "nothing decodes yet"
    loop.add(work("b", prompt=150))
    assert [chunks(pass_step(loop)) for _ in range(5)] == [{}, {"b": 99}, {}, {}, {"b": 51}]


def test_steps_that_repeat_end_where_prompts_are_due() -> None:
    loop, _ = scheduler(prefill_schedule_interval=4)
    loop.add(work("a", output=20))
    pass_step(loop)
    _, step = loop.schedule()
    assert step is not None
    assert loop.repeats(step) == 19, "nobody waits"
    loop.add(work("b"))
    assert loop.repeats(step) == 3
    loop.complete(step, 3)
    assert chunks(pass_step(loop)) == {"b": 20}


def test_a_queue_that_stays_full_is_served_in_every_step() -> None:
    loop, _ = scheduler(prefill_schedule_interval=4)
    loop.add(work("a", output=20))
    pass_step(loop)
    for name in "bcd":
        loop.add(work(name, prompt=80))
    assert [chunks(pass_step(loop)) for _ in range(4)] == [{}, {}, {}, {"b": 80, "c": 19}]
    assert chunks(pass_step(loop)) == {"c": 61, "d": 37}, "d was left in the queue"


def test_no_step_is_empty_because_prompts_are_not_due() -> None:
    """The only sequence that decodes is preempted: there is no block for its next token."""
    loop, pool = scheduler(blocks=4, prefill_schedule_interval=100)
    loop.add(work("a", prompt=19, output=10))
    pass_step(loop)
    assert pool.take("other", 2)
    assert chunks(pass_step(loop)) == {"a": 20}


def test_no_more_than_max_num_seqs_run() -> None:
    loop, _ = scheduler()
    for name in "abcdef":
        loop.add(work(name, prompt=10, output=1 + (name != "a")))
    pass_step(loop)
    assert (names(loop.running), loop.queued) == (["b", "c", "d"], 2), "a had one token only"
    pass_step(loop)
    assert (names(loop.running), loop.queued) == (["e"], 1), "b, c, d have ended; e was the fourth"


def test_a_request_waits_until_its_blocks_are_free_and_all_behind_it_wait_too() -> None:
    loop, pool = scheduler(blocks=5)
    first, large, small = work("first", prompt=29, output=1), work("large", prompt=40), work("small", prompt=10)
    for each in (first, large, small):
        loop.add(each)
    pass_step(loop)
    assert (names(list(loop.waiting)), pool.held) == (["large", "small"], 3)
    pool.free("first")
    assert chunks(pass_step(loop)) == {"large": 40, "small": 10}


def test_a_sequence_that_loads_holds_blocks_and_does_not_run() -> None:
    loop, pool = scheduler()
    remote = work("remote", prompt=50, loads=True)
    loop.add(remote)
    begun, step = loop.schedule()
    assert (names(begun), step, pool.held) == (["remote"], None, 5)
    assert (loop.deferred, loop.queued, len(loop.running)) == (1, 1, 0)
    loop.loaded(remote, cached=50)
    step = pass_step(loop)
    assert (names(step.decodes), chunks(step)) == (["remote"], {}), "its first token is as cheap as any other"
    assert remote.produced == 1


def test_what_was_not_loaded_is_computed() -> None:
    loop, _ = scheduler()
    missed, partial = work("missed", prompt=50, loads=True), work("partial", prompt=50, loads=True)
    for each in (missed, partial):
        loop.add(each)
    loop.schedule()
    loop.loaded(missed, cached=0)
    loop.loaded(partial, cached=40)
    assert chunks(pass_step(loop)) == {"missed": 50, "partial": 10}


def test_no_load_begins_while_the_engine_is_full() -> None:
    loop, pool = scheduler(max_num_seqs=1)
    loop.add(work("a", output=2))
    pass_step(loop)
    loop.add(work("remote", prompt=50, loads=True))
    begun, _ = loop.schedule()
    assert (begun, pool.of("remote"), loop.deferred) == ([], 0, 0)


def test_a_sequence_that_holds_blocks_goes_before_the_queue() -> None:
    loop, _ = scheduler(max_num_seqs=2)
    remote = work("remote", prompt=50, loads=True)
    loop.add(remote)
    loop.add(work("a", output=2))
    pass_step(loop)
    loop.add(work("b"))
    loop.add(work("c"))
    loop.loaded(remote, cached=50)
    loop.schedule()
    assert names(loop.running) == ["a", "remote"]


def test_without_a_free_block_the_last_admitted_sequence_is_preempted_and_computes_again() -> None:
    loop, pool = scheduler(blocks=4)
    old, young = work("old", prompt=20, output=15), work("young", prompt=18, output=15)
    loop.add(old)
    loop.add(young)
    pass_step(loop)
    step = pass_step(loop)
    assert (names(step.decodes), loop.preemptions) == (["old"], 1), "old's 21st token needs the block"
    assert (pool.of("young"), names(list(loop.waiting)), young.produced) == (0, ["young"], 1)
    while not old.is_done:
        pass_step(loop)
    pool.free("old")
    assert chunks(pass_step(loop)) == {"young": 19}, "its prompt and its first token"
    assert young.produced == 2


def test_a_removed_sequence_gets_no_token() -> None:
    loop, _ = scheduler()
    leaves, stays = work("leaves"), work("stays")
    for each in (leaves, stays):
        loop.add(each)
    _, step = loop.schedule()
    assert step is not None
    loop.remove(leaves)
    assert names(loop.complete(step)) == ["stays"]
    assert (leaves.produced, loop.queued, names(loop.running)) == (0, 0, ["stays"])


def test_a_prefill_can_be_made_longer_than_its_prompt() -> None:
    loop, pool = scheduler()
    loop.add(Work("long", 20, 1, prefill=250))
    steps = [pass_step(loop) for _ in range(3)]
    assert ([chunks(step)["long"] for step in steps], pool.held) == ([100, 100, 50], 2)
    assert sum(step.seconds for step in steps) == pytest.approx(3 * 0.011 + 250 * 0.0001)


@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_ends_whatever_the_load_and_no_block_stays(seed: int) -> None:
    rng = random.Random(seed)
    loop, pool = scheduler(blocks=rng.randint(12, 40), max_num_batched_tokens=rng.randint(5, 60))
    everyone = [
        work(str(i), rng.randint(1, 60), rng.randint(1, 50), loads=rng.random() < 0.4)
        for i in range(rng.randint(1, 25))
    ]
    arriving = list(everyone)
    loads: list[Work] = []
    for _ in range(20_000):
        if arriving and rng.random() < 0.5:
            loop.add(arriving.pop())
        begun, step = loop.schedule()
        loads += begun
        assert len(loop.running) <= 4
        assert pool.free_blocks >= 0
        if step is not None:
            assert sum(tokens for _, tokens in step.prefills) + len(step.decodes) <= loop._limits.max_num_batched_tokens
            for each in loop.complete(step):
                if each.is_done:
                    pool.free(each.owner)
        if loads and rng.random() < 0.5:
            arrived = loads.pop(rng.randrange(len(loads)))
            loop.loaded(arrived, rng.choice((0, arrived.prompt // 2, arrived.prompt)))
        if not arriving and all(each.is_done for each in everyone):
            break
    assert all(each.produced == each.output for each in everyone)
    assert (pool.held, loop.queued, loop.running) == (0, 0, [])
