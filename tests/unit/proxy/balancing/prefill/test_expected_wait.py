"""The policy ExpectedWait under a virtual clock: choices, rates, caches that mirror the engine's."""

from collections import OrderedDict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.balancing.prefill.backlog import PrefillLeg
from pdx_proxy.balancing.prefill.expected_wait import ExpectedWait
from pdx_proxy.balancing.prefill.prefix_cache import UNREPORTED_TOKENS, PrefixCache
from pdx_proxy.payload.prompt_blocks import PromptBlocks

BLOCK = 512


def prompt(*blocks: int, tokens: int | None = None) -> PromptBlocks:
    """A prompt of blocks of 512 tokens. Equal beginnings have equal ids, as in the traces."""
    ends = [BLOCK * (index + 1) for index in range(len(blocks))]
    return PromptBlocks(list(blocks), ends, ends[-1] if tokens is None else tokens)


class Engines:
    """Engines that prefill one prompt after the other, and a policy that chooses among them."""

    def __init__(self, *speeds: float) -> None:
        self.now = 1000.0
        self.policy = ExpectedWait()
        self.speeds = list(speeds)
        self.free = [self.now] * len(speeds)
        self.open: list[tuple[float, int, PrefillLeg]] = []
        self.cursor = 0
        self.ids = iter(range(1, 1 << 30))

    @property
    def names(self) -> list[str]:
        return [f"p{index}" for index in range(len(self.speeds))]

    def rates(self) -> list[float]:
        return [self.policy.engine(name).rate(self.now) for name in self.names]

    def send(self, sent: PromptBlocks) -> int:
        """Let the policy choose, and prefill there. The engine's cache is what the policy expects."""
        engines = [self.policy.engine(name) for name in self.names]
        self.cursor += 1
        chosen = self.policy.choose(engines, sent, self.now, self.cursor)
        leg = self.policy.sent(engines[chosen], sent, self.now)
        self.free[chosen] = max(self.free[chosen], self.now) + leg.tokens / self.speeds[chosen]
        self.open.append((self.free[chosen], chosen, leg))
        return chosen

    def run(self, seconds: float, load: float = 0.7, tokens: int = 2000) -> list[int]:
        """Traffic of prompts without common beginnings; return how many each engine got."""
        counts = [0] * len(self.speeds)
        gap = tokens / (load * sum(self.speeds))
        end = self.now + seconds
        while self.now < end:
            self.advance(self.now + gap)
            counts[self.send(PromptBlocks([next(self.ids)], [tokens], tokens))] += 1
        return counts

    def advance(self, now: float) -> None:
        for at, _, leg in sorted((each for each in self.open if each[0] <= now), key=lambda each: each[0]):
            leg.answered(at)
        self.open = [each for each in self.open if each[0] > now]
        self.now = now


# what is chosen


def choices(policy: ExpectedWait, names: str, sent: PromptBlocks, now: float = 0.0) -> set[int]:
    engines = [policy.engine(name) for name in names]
    return {policy.choose(engines, sent, now, cursor) for cursor in range(len(names))}


def test_before_anything_is_learned_the_fewest_queued_tokens_decide() -> None:
    policy = ExpectedWait()
    assert choices(policy, "abc", prompt(1, 2)) == {0, 1, 2}, "equal engines alternate"
    policy.sent(policy.engine("a"), prompt(3), 0.0)
    policy.sent(policy.engine("b"), prompt(4, 5, 6, 7), 0.0)
    assert choices(policy, "ab", prompt(9)) == {0}
    assert choices(policy, "abc", prompt(9)) == {2}


def test_a_prompt_goes_where_its_beginning_is_unless_the_backlog_there_is_longer() -> None:
    policy = ExpectedWait()
    policy.sent(policy.engine("a"), prompt(*range(10)), 0.0).answered(1.0)
    assert choices(policy, "abc", prompt(*range(10), 99)) == {0}
    assert choices(policy, "abc", prompt(50, 51)) == {1, 2}, "of equals, those that got nothing yet"
    policy.sent(policy.engine("a"), prompt(*range(100, 108)), 1.0)
    assert choices(policy, "abc", prompt(*range(10), 99), 1.0) == {0}, "8 blocks of backlog, 10 cached"
    policy.sent(policy.engine("a"), prompt(*range(200, 209)), 1.0)
    assert choices(policy, "abc", prompt(*range(10), 99), 1.0) == {1, 2}


def busy(prompts: int) -> ExpectedWait:
    """Two engines that compute 512 tokens per second and have got so many prompts; "a" has one of 10 blocks."""
    policy = ExpectedWait()
    for name in "ab":
        policy.sent(policy.engine(name), prompt(-1, tokens=511), 0.0).answered(1.0)
    policy.sent(policy.engine("a"), prompt(*range(10)), 1.0).answered(11.0)
    for number in range(prompts):
        policy.sent(policy.engine("ab"[number % 2]), prompt(1000 + number), 11.0, False).answered(11.0)
    policy.sent(policy.engine("a"), prompt(*range(100, 120)), 11.0)
    return policy


def test_a_conversation_stays_at_its_cache_the_longer_the_busier_the_engines_are() -> None:
    """ "a" has 20 s of backlog and needs 1 s for the prompt; "b" needs 11 s. Every second delays other prompts."""
    sent = prompt(*range(10), 99)
    waits = busy(0).waits([busy(0).engine("a"), busy(0).engine("b")], sent, 11.0)
    assert choices(busy(0), "ab", sent, 11.0) == {1}
    assert choices(busy(40), "ab", sent, 11.0) == {0}
    assert waits[0] > 1.5 * waits[1]


def test_of_idle_engines_the_one_with_the_least_recent_work_gets_a_new_prompt() -> None:
    """Although the others have the prompt that all share, as long as it is short."""
    policy = ExpectedWait()
    for name, tokens in (("a", 60_000), ("b", 60_000), ("c", 100)):
        policy.sent(policy.engine(name), prompt(ord(name), tokens=tokens), 0.0).answered(tokens / 10_000)
    for name in "ab":
        policy.sent(policy.engine(name), prompt(1, 2), 7.0).answered(7.1)
    assert choices(policy, "abc", prompt(1, 2, 3), 8.0) == {2}
    assert choices(policy, "abc", prompt(1, 2, 3), 500.0) == {0, 1}, "what was long ago does not count"


def test_what_is_done_of_the_oldest_leg_no_longer_waits() -> None:
    policy = ExpectedWait()
    a = policy.engine("a")
    policy.sent(a, prompt(1, tokens=1000), 0.0).answered(1.0)  # 1001 tokens per second
    leg = policy.sent(a, prompt(2, tokens=10_009), 1.0)
    waits = [policy.waits([a], prompt(3, tokens=1000), now)[0] for now in (1.0, 6.0, 11.0, 60.0)]
    assert waits == pytest.approx([11, 6, 1, 1], abs=0.01), "an engine that is late has no negative backlog"
    leg.answered(60.0)
    assert a.backlog == 0


def test_a_dropped_leg_leaves_the_backlog_once_and_shows_no_rate() -> None:
    policy = ExpectedWait()
    a = policy.engine("a")
    leg = policy.sent(a, prompt(1, 2, 3), 0.0)
    leg.dropped()
    leg.dropped()
    leg.answered(5.0)
    assert (a.backlog, a.rate(5.0)) == (0, 0.0)


def test_equal_engines_alternate_whatever_the_cursor_is() -> None:
    policy = ExpectedWait()
    engines = [policy.engine(name) for name in "abc"]
    for now in range(6):
        chosen = policy.choose(engines, prompt(now), float(now), cursor=4)
        assert chosen == (4 + now) % 3
        policy.sent(engines[chosen], prompt(now), float(now)).answered(float(now))


def test_an_engine_in_slow_start_gets_less_than_its_share() -> None:
    policy = ExpectedWait()
    engines = [policy.engine("old"), policy.engine("new")]
    policy.sent(engines[0], prompt(1, 2, 3, 4), 0.0)
    assert policy.choose(engines, prompt(9), 0.0, 0, [1.0, 0.1]) == 0
    assert policy.choose(engines, prompt(9), 0.0, 0, [1.0, 0.5]) == 1


def test_an_engine_that_decodes_costs_more_the_more_it_decodes() -> None:
    """A prompt of 2 blocks in the cache of "a" weighs as much as 8 sequences."""
    policy = ExpectedWait()
    engines = [policy.engine("a"), policy.engine("b")]
    policy.sent(engines[0], prompt(1, 2), 0.0).answered(1.0)
    assert policy.choose(engines, prompt(1, 2), 2.0, 0, None, [7, 0]) == 0
    assert policy.choose(engines, prompt(1, 2), 2.0, 0, None, [9, 0]) == 1
    assert policy.choose(engines, prompt(3), 2.0, 0, None, [2, 1]) == 1


# rates


def test_legs_that_overlap_count_the_engines_time_once() -> None:
    policy = ExpectedWait()
    a = policy.engine("a")
    legs = [policy.sent(a, prompt(n, tokens=1000), 0.0) for n in range(4)]
    for number, leg in enumerate(legs):
        leg.answered(number + 1.0)
    assert a.rate(4.0) == pytest.approx(1001)


def test_idle_time_and_answers_after_decoding_show_no_rate() -> None:
    policy = ExpectedWait()
    a = policy.engine("a")
    policy.sent(a, prompt(1, tokens=1000), 0.0).answered(1.0)
    policy.sent(a, prompt(2, tokens=1000), 50.0).answered(51.0)
    assert a.rate(51.0) == pytest.approx(1001)
    policy.sent(a, prompt(3, tokens=1000), 51.0, learns=False).answered(99.0)
    assert a.rate(51.0) == pytest.approx(1001)
    assert a.backlog == 0


def test_cached_prompts_show_no_slow_engine() -> None:
    """Each of them takes 20 ms whatever it computes."""
    policy = ExpectedWait()
    a, b, now = policy.engine("a"), policy.engine("b"), 0.0
    for number in range(20):
        for engine in (a, b):
            policy.sent(engine, prompt(number, tokens=1000), now).answered(now + 0.1)
        now += 0.1
    policy.sent(a, prompt(1000), now, False).answered(now)
    for _ in range(500):
        policy.sent(a, prompt(1000), now).answered(now + 0.02)
        now += 0.02
    assert a.rate(now) > 0.9 * b.rate(now)


def test_speeds_are_learned() -> None:
    engines = Engines(10_000, 5_000)
    counts = engines.run(60)
    assert engines.rates() == pytest.approx([10_000, 5_000], rel=0.1)
    assert counts[0] > 1.5 * counts[1]


def test_rates_follow_an_engine_that_slows_by_half_within_30_s() -> None:
    engines = Engines(10_000, 10_000, 10_000)
    engines.run(60)
    engines.speeds[1] = 5_000
    counts = engines.run(30, load=0.95)
    assert engines.rates() == pytest.approx([10_000, 5_000, 10_000], rel=0.1)
    assert counts[1] < 0.6 * counts[0]
    engines.speeds[1] = 10_000
    engines.run(60, load=0.95)
    assert engines.rates() == pytest.approx([10_000] * 3, rel=0.1)


def test_the_rate_of_an_engine_with_little_traffic_follows_within_30_s() -> None:
    engines = Engines(10_000)
    engines.run(60)
    engines.speeds[0] = 5_000
    engines.run(30, load=0.1)
    assert engines.rates() == pytest.approx([5_000], rel=0.1)


def test_a_new_or_restarted_engine_has_the_mean_rate_and_an_empty_cache() -> None:
    engines = Engines(10_000, 4_000)
    engines.run(60)
    own = prompt(*range(10**6, 10**6 + 8))
    engines.policy.sent(engines.policy.engine("p1"), own, engines.now).answered(engines.now + 1)
    engines.policy.forget("p1")
    fresh = engines.policy.engine("p1")
    assert 4_000 < fresh.rate(engines.now) < 10_000
    assert (fresh.backlog, fresh.cache.cached(own), fresh.cache.tokens) == (0, 0, 0)
    engines.speeds.append(10_000)
    engines.free.append(engines.now)
    engines.free[1] = engines.now
    counts = engines.run(30, load=0.95)
    assert engines.rates() == pytest.approx([10_000, 4_000, 10_000], rel=0.1)
    assert counts[2] > counts[1] > 0


def test_an_engine_that_is_gone_gets_nothing_and_the_others_stay() -> None:
    engines = Engines(10_000, 10_000, 10_000)
    engines.run(30)
    late = [leg for _, chosen, leg in engines.open if chosen == 2]
    engines.policy.forget("p2")
    assert set(engines.policy.engines) == {"p0", "p1"}
    for leg in late:
        leg.answered(engines.now)
    engines.speeds.pop()
    engines.free.pop()
    engines.open = [each for each in engines.open if each[1] < 2]
    assert sum(engines.run(30, load=0.6)) > 100
    assert engines.rates() == pytest.approx([10_000, 10_000], rel=0.1)


def test_no_engine_starves_that_was_slow_once() -> None:
    """One slow answer, ten times slower than the others. Within two minutes it is tried again, and recovers."""
    engines = Engines(10_000, 10_000)
    engines.run(30, load=0.3)
    slow = engines.policy.sent(engines.policy.engine("p1"), prompt(5, tokens=5000), engines.now)
    engines.now += 20
    slow.answered(engines.now)
    engines.free = [engines.now] * 2
    assert engines.rates()[1] < 2_000
    counts = engines.run(120, load=0.3)
    assert counts[1] > 0.1 * counts[0]
    assert engines.rates() == pytest.approx([10_000, 10_000], rel=0.1)


def test_equal_idle_engines_share_although_their_rates_differ_a_little() -> None:
    engines = Engines(10_000, 10_200)
    counts = engines.run(100, load=0.05)
    assert min(counts) > 0.4 * max(counts)


# caches


class ReferenceCache:
    """LRU over blocks, written down once more."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def cached(self, blocks: list[int]) -> int:
        count = next((index for index, block in enumerate(blocks) if block not in self.blocks), len(blocks))
        return count * BLOCK

    def touch(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.blocks.pop(block, None)
            self.blocks[block] = None
        while len(self.blocks) > self.capacity:
            self.blocks.popitem(last=False)


def chains(draws: list[tuple[int, int, int]]) -> Iterator[list[int]]:
    """Prompts that branch off earlier ones: (which earlier one, blocks kept of it, new blocks)."""
    made: list[list[int]] = [[]]
    number = 0
    for which, kept, new in draws:
        base = made[which % len(made)]
        made.append([*base[:kept], *range(number + 1, number + 1 + new)])
        number += new
        yield made[-1]


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 8), st.integers(0, 6)), max_size=60),
)
def test_a_cache_evicts_like_an_lru(capacity: int, draws: list[tuple[int, int, int]]) -> None:
    cache, reference = PrefixCache(), ReferenceCache(capacity)
    cache.resize(capacity * BLOCK)
    for blocks in chains(draws):
        sent = prompt(*blocks, tokens=len(blocks) * BLOCK)
        expected = reference.cached(blocks)
        assert cache.cached(sent) == expected
        assert cache.reserve(sent) == expected
        cache.touch(sent)
        reference.touch(blocks)
        assert (len(cache), cache.tokens) == (len(reference.blocks), len(reference.blocks) * BLOCK)


def test_a_cache_that_shrinks_or_is_cleared_forgets() -> None:
    cache = PrefixCache()
    assert cache.capacity == UNREPORTED_TOKENS
    cache.touch(prompt(1, 2, 3, 4))
    cache.resize(2 * BLOCK)
    assert cache.cached(prompt(1, 2, 3, 4)) == 2 * BLOCK, "the first blocks stay longest"
    cache.clear()
    assert (cache.cached(prompt(1)), cache.tokens, len(cache)) == (0, 0, 0)
