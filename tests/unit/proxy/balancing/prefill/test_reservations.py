"""A prompt counts once its engine has answered 200. Until then it is a reservation, which is taken back once."""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.prefill.backlog import PrefillLeg
from pdx_proxy.balancing.prefill.balancer import PrefillBalancer
from pdx_proxy.balancing.prefill.expected_wait import ExpectedWait
from pdx_proxy.balancing.prefill.prefix_cache import PrefixCache
from pdx_proxy.balancing.prefill.shared_log import SharedLog, SharedLogMemory
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.models import read_models
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.decisions import Decisions
from pdx_proxy.payload.features import PromptFeatures
from pdx_proxy.payload.prompt_blocks import PromptBlocks

BLOCK = 512
LONGEST = 16_384
P = Endpoint(EndpointSpec(Address("127.0.0.1", 1), Role.PREFILL), State.WARM, generation=1, slot=0)


def prompt(*blocks: int) -> PromptBlocks:
    ends = [BLOCK * (index + 1) for index in range(len(blocks))]
    return PromptBlocks(list(blocks), ends, len(blocks) * BLOCK)


def long_prompt(tokens: int) -> PromptBlocks:
    """A prompt of 200 blocks, as the gateway cuts a text of many MiB."""
    return PromptBlocks(list(range(-200, 0)), [tokens * (index + 1) // 200 for index in range(200)], tokens)


def state(policy: ExpectedWait) -> dict[str, Any]:
    """What outlives the open legs."""
    engines = {
        name: (
            *(list(engine.cache._blocks.items()), engine.cache._reserved, engine.cache._latest),
            *(engine.cache.tokens, engine.recent, engine.sent_at),
            *(engine.backlog, engine.measured.tokens, engine.measured.seconds, engine.expected_hits),
        )
        for name, engine in policy.engines.items()
    }
    everything = policy.all
    sums = (everything.recent, everything.prompt_tokens, everything.cached_tokens, everything.rate.tokens)
    return {"engines": engines, "sums": sums}


Step = tuple[str, bool, int]
"""An engine, whether it answers, and after how many further steps the leg ends."""


def run(steps: list[Step], capacity: int, shared: bool, everything: bool) -> ExpectedWait:
    """Send prompts one second after the other; `everything`: also those that are dropped."""
    policy, now = ExpectedWait(), 0.0
    for name in "ab":
        policy.engine(name).cache.resize(capacity * BLOCK)
    open_legs: list[tuple[int, bool, PrefillLeg]] = []
    for number, (name, answers, lasts) in enumerate([*steps, *[("a", False, 0)] * 9]):
        now += 1.0
        ended = [each for each in open_legs if each[0] <= number]
        open_legs = [each for each in open_legs if each[0] > number]
        for _, is_answered, leg in ended:
            leg.answered(now) if is_answered else leg.dropped()
        if number < len(steps) and (answers or everything):
            first = (1, 2, number % 3 + 3) if shared else (100 + number,)
            leg = policy.sent(policy.engine(name), prompt(*first, 1000 + number), now, learns=False)
            open_legs.append((number + 1 + lasts, answers, leg))
    return policy


STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(0, 7)), max_size=40)


@given(STEPS, st.integers(2, 30))
def test_dropped_prompts_leave_no_trace(steps: list[Step], capacity: int) -> None:
    assert state(run(steps, capacity, False, True)) == state(run(steps, capacity, False, False))


@given(STEPS, st.integers(2, 30))
def test_the_mirror_has_what_was_computed_whatever_was_dropped(steps: list[Step], capacity: int) -> None:
    found, expected = (run(steps, capacity, True, everything) for everything in (True, False))
    for name, engine in expected.engines.items():
        assert list(found.engine(name).cache._blocks.items()) == list(engine.cache._blocks.items())


@pytest.mark.parametrize("calls", [*product(("answered", "dropped"), repeat=3)], ids="-".join)
def test_the_first_end_counts(calls: tuple[str, ...]) -> None:
    policy, once = ExpectedWait(), ExpectedWait()
    for each, made in ((policy, calls), (once, calls[:1])):
        each.sent(each.engine("a"), prompt(7), 0.0).answered(1.0)
        leg = each.sent(each.engine("a"), prompt(1, 2, 3), 1.0)
        for call in made:
            leg.answered(3.0) if call == "answered" else leg.dropped()
    assert state(policy) == state(once)
    assert policy.engine("a").backlog == 0


def test_a_prompt_counts_as_backlog_until_it_ends_and_as_work_after_its_answer() -> None:
    policy = ExpectedWait()
    engine = policy.engine("a")
    legs = [policy.sent(engine, prompt(number, number + 1), 0.0) for number in (10, 20)]
    assert (engine.backlog, engine.recent, engine.cache.tokens, policy.all.recent) == (2 * 1025, 0.0, 0, 0.0)
    assert engine.cache.cached(prompt(10, 11, 12)) == 2 * BLOCK, "prompts with the same beginning come here too"
    legs[0].answered(1.0)
    legs[1].dropped()
    assert (engine.backlog, engine.recent, engine.cache.tokens, policy.all.recent) == (0, 1025.0, 1024, 1.0)
    assert engine.cache.cached(prompt(20, 21)) == 0


def test_a_leg_that_shares_the_blocks_of_a_dropped_one_brings_them_itself() -> None:
    cache, short, long, longest = PrefixCache(), prompt(1, 2), prompt(1, 2, 3), prompt(1, 2, 3, 4)
    assert [cache.reserve(short), cache.reserve(long)] == [0, 2 * BLOCK]
    cache.withdraw(short)
    cache.touch(long)
    assert (cache.cached(long), cache.tokens, len(cache)) == (3 * BLOCK, 3 * BLOCK, 3)
    cache.reserve(longest)
    cache.withdraw(longest)
    assert cache.cached(longest) == 3 * BLOCK, "what was computed before stays"


def test_a_reservation_that_no_search_has_met_leaves_nothing() -> None:
    cache, first, second = PrefixCache(), prompt(1, 2), prompt(1, 2, 3)
    cache.reserve(first)
    cache.withdraw(first)
    assert cache.cached(second) == 0
    cache.reserve(first)
    assert cache.cached(second) == 2 * BLOCK, "a search meets it"
    cache.withdraw(first)
    assert cache.cached(second) == 0


def test_reservations_evict_nothing() -> None:
    cache = PrefixCache()
    cache.resize(4 * BLOCK)
    cache.touch(prompt(1, 2, 3, 4))
    cache.reserve(prompt(*range(100, 200)))
    assert cache.cached(prompt(1, 2, 3, 4)) == 4 * BLOCK
    cache.touch(prompt(5))
    assert cache.cached(prompt(1, 2, 3, 4)) == 3 * BLOCK


def test_a_dropped_leg_does_not_slow_its_engine_down() -> None:
    """The prompt behind one that is given up after 9 s shows nothing; the next one shows the rate again."""
    policy = ExpectedWait()
    engine = policy.engine("a")
    policy.sent(engine, prompt(1, 2), 0.0).answered(1.0)
    given_up, behind = policy.sent(engine, prompt(3, 4), 1.0), policy.sent(engine, prompt(5, 6), 2.0)
    given_up.dropped()
    assert policy.waits([engine], prompt(9), 2.0)[0] == pytest.approx(1.5, abs=0.01), "all of the other is to do"
    behind.answered(10.0)
    assert engine.rate(10.0) == pytest.approx(1025)
    policy.sent(engine, prompt(7, 8), 10.0).answered(12.0)
    assert engine.rate(12.0) < 1000


def test_a_leg_that_only_waits_behind_another_disturbs_no_measurement() -> None:
    policy = ExpectedWait()
    engine = policy.engine("a")
    worked_on, waiting = policy.sent(engine, prompt(1, 2), 0.0), policy.sent(engine, prompt(3, 4), 0.5)
    waiting.dropped()
    worked_on.answered(1.0)
    assert engine.rate(1.0) == pytest.approx(1025)


@pytest.mark.parametrize("refused", [1, 2, 3, 4, 5, 50])
def test_refused_prompts_change_no_turn(refused: int) -> None:
    policy = ExpectedWait()
    engines, found = [policy.engine(name) for name in "abcd"], [0] * 4
    for now in range(200):
        chosen = policy.choose(engines, prompt(now, -now), float(now), now)
        found[chosen] += 1
        policy.sent(engines[chosen], prompt(now, -now), float(now)).answered(now + 0.1)
        for number in range(refused):
            at = now + 0.2 + number / 100
            engine = engines[policy.choose(engines, prompt(*range(-32, 0)), at, number)]
            policy.sent(engine, prompt(*range(-32, 0)), at).dropped()
    assert found == [50] * 4


# bounds


def balancer(endpoint: Endpoint, log: SharedLog | None = None, cache_tokens: int = 0) -> PrefillBalancer:
    by = PrefillBalancer(Load(clock=lambda: 1.0), log)
    report = LoadReport(0, 0, 0.0, cache_tokens=cache_tokens)
    by.apply(Snapshot.of([endpoint]), LoadReports({endpoint.name: report} if cache_tokens else {}))
    return by


def models(*longest: Any) -> bytes:
    cards = b",".join(b'{"id":"%d","max_model_len":%b}' % (n, str(each).encode()) for n, each in enumerate(longest))
    return b'{"data":[%b]}' % cards


def body(blocks: PromptBlocks) -> Body:
    return Body(decisions=Decisions(True, True), features=PromptFeatures(blocks=blocks))


@pytest.mark.parametrize(
    ("page", "cache_tokens", "backlog"),
    [
        pytest.param(models(LONGEST), 0, LONGEST + 1, id="the longest prompt"),
        pytest.param(models(4096, LONGEST), 0, LONGEST + 1, id="an adapter with less"),
        pytest.param(models(LONGEST), 8192, 8193, id="a small cache"),
        pytest.param(models(LONGEST), 1 << 20, LONGEST + 1, id="a large cache"),
        pytest.param(b'{"data":[{"id":"a"}]}', 8192, 8193, id="no length"),
        pytest.param(models(-1, 0, 1.5, '"x"'), 0, 8_388_609, id="no length that can be"),
        pytest.param(b'{"data":[{"id":"a","max_model_len":true}]}', 0, 8_388_609, id="a truth value"),
        pytest.param(b'{"data":[{"id":"a","max_model_len":null}]}', 0, 8_388_609, id="null"),
    ],
)
def test_a_prompt_is_as_long_as_its_engine_accepts(page: bytes, cache_tokens: int, backlog: int) -> None:
    found = read_models(page)
    assert found is not None
    by = balancer(replace(P, models=found), cache_tokens=cache_tokens)
    leg = by.sent(P, body(long_prompt(15_000_000)), True)
    engine = by.expected.engine(P.name)
    assert engine.backlog == leg.tokens == backlog
    leg.answered(2.0)
    assert engine.recent == backlog
    assert engine.cache.tokens <= backlog, "an accepted prompt is shorter than its bytes let it appear"
    assert by.expected.all.prompt_tokens == backlog - 1


def test_a_prompt_that_appears_too_long_evicts_no_other() -> None:
    found = read_models(models(LONGEST))
    assert found is not None
    by = balancer(replace(P, models=found))
    engine = by.expected.engine(P.name)
    others = [prompt(*range(10 * number, 10 * number + 10)) for number in range(1, 41)]
    for other in others:
        by.sent(P, body(other), True).answered(1.0)
    by.sent(P, body(long_prompt(100_000)), True).answered(1.0)
    assert [engine.cache.cached(other) for other in others] == [10 * BLOCK] * 40
    assert engine.left(long_prompt(100_000)) < LONGEST // 10, "and its own beginning is found"


# workers


@pytest.fixture
def memory() -> Iterator[SharedLogMemory]:
    owner = SharedLogMemory(2)
    yield owner
    owner.close()


@pytest.mark.parametrize("end", ["answered", "dropped", "lost"])
def test_other_workers_count_what_an_engine_has_computed(end: str, memory: SharedLogMemory) -> None:
    one, other = (balancer(P, SharedLog.over(os.dup(memory.fd), number, 2)) for number in range(2))
    leg = one.sent(P, body(prompt(1, 2)), True)
    other.report()
    copy = other.expected.engine(P.name)
    assert (copy.backlog, copy.recent, copy.cache.tokens) == (1025, 0.0, 0)
    if end == "lost":
        memory.forget(0)
    else:
        leg.answered(2.0) if end == "answered" else leg.dropped()
    other.report()
    computed = end == "answered"
    assert (copy.backlog, copy.recent, copy.cache.tokens) == (0, 1025.0 * computed, 1024 * computed)
    assert len(copy.cache) == 2 * computed
    assert other.expected.all.recent == computed
    assert other.expected.all.prompt_tokens == 0, "each prompt is counted by its own worker"
