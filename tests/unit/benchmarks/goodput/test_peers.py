"""The policies of other gateways, on cases made by hand."""

import random

import pytest

from benchmarks.goodput.engine import Engine, EngineModel
from benchmarks.goodput.peers import llm_d
from benchmarks.goodput.peers.base import Groups, PeerRouter
from benchmarks.goodput.peers.dynamo import KvRouter
from benchmarks.goodput.peers.llm_d import Scorers
from benchmarks.goodput.peers.vllm_router import CacheAware, PowerOfTwo, RoundRobin
from benchmarks.goodput.simulation import Layout, Route
from benchmarks.goodput.traces import Chains, Request
from pdx_sim.core.scheduler import Work
from pdx_sim.profiles import LLAMA_70B

MODEL = EngineModel.of(LLAMA_70B)
CHAINS = Chains()


def engines(layout: Layout) -> tuple[Engine, ...]:
    return layout.engines(MODEL)


def request(index: int, ids: list[int], tokens: int | None = None) -> Request:
    tokens = len(ids) * 512 if tokens is None else tokens
    return Request(index, 0.0, tokens, 10, CHAINS.prefix(ids, tokens))


def rng() -> random.Random:
    return random.Random(1)


def test_round_robin_takes_one_after_the_other() -> None:
    policy = RoundRobin(engines(Layout(3, 1))[:3], rng())
    assert [policy.choose(request(i, [i]), 0.0) for i in range(4)] == [0, 1, 2, 0]


def test_power_of_two_takes_the_less_loaded_of_two() -> None:
    policy = PowerOfTwo(engines(Layout(2, 1))[:2], rng())
    policy.loads = [5, 3]
    assert policy.choose(request(0, [0]), 0.0) == 1
    policy.ended(request(0, [0]), 1)
    assert policy.loads == [5, 3]


def test_cache_aware_follows_the_prefix_above_its_threshold() -> None:
    policy = CacheAware(engines(Layout(3, 1))[:3], rng())
    assert policy.choose(request(0, [1, 2, 3, 4]), 0.0) == 0
    policy.loads = [9, 1, 0]
    assert policy.choose(request(1, [1, 2, 3, 9]), 0.0) == 0, (
        "3 of 4 blocks are there, and the loads are balanced enough"
    )
    assert policy.choose(request(2, [1, 20, 30, 40]), 0.0) == 2, "a quarter is below 0.3: the least loaded"


def test_cache_aware_takes_the_least_loaded_when_loads_differ_by_more_than_64_and_one_and_a_half() -> None:
    policy = CacheAware(engines(Layout(2, 1))[:2], rng())
    policy.choose(request(0, [1, 2]), 0.0)
    policy.loads = [64, 0]
    assert policy.choose(request(1, [1, 2]), 0.0) == 0
    assert policy.loads == [65, 0]
    assert policy.choose(request(2, [1, 2]), 0.0) == 1
    policy.loads = [265, 200]
    assert policy.choose(request(3, [1, 2, 3]), 0.0) == 1, (
        "265 is less than 1.5 times 200; 1 has the prefix too and less load"
    )


def test_cache_aware_forgets_what_was_not_used_for_the_longest_time() -> None:
    policy = CacheAware(engines(Layout(2, 1))[:2], rng(), tree_tokens=1024)
    policy.choose(request(0, [1, 2]), 0.0)
    policy.loads = [0, 5]
    policy.choose(request(1, [3, 4]), 1.0)
    policy.loads = [5, 0]
    assert policy.choose(request(2, [1, 2]), 119.0) == 0, "nothing is evicted before the interval has passed"
    policy.loads = [5, 0]
    assert policy.choose(request(3, [3, 4]), 121.0) == 1, (
        "3 4 was used before 1 2, and the tree has room for one of them"
    )


def test_llm_d_weighs_prefix_queue_and_kv() -> None:
    pool = engines(Layout(2, 1))[:2]
    policy = Scorers(pool, rng())
    first = policy.choose(request(0, [1, 2, 3, 4]), 0.0)
    assert policy.choose(request(1, [1, 2, 3, 5]), 0.0) == first
    assert policy.scores(request(2, [1, 2, 3, 4]))[first] == pytest.approx(2 + 2 + 3)
    for number in range(3):
        pool[first].scheduler.add(Work(str(number), 100, 1))
    assert policy.choose(request(3, [1, 2, 9, 9]), 0.01) == first, "metrics are up to 50 ms old"
    assert policy.choose(request(4, [1, 2, 7, 8]), 0.1) == 1 - first, "half of the prefix weighs 1.5, the queue 2"


def test_llm_ds_index_has_as_many_blocks_as_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    index = llm_d._Index(64)
    index.add(request(0, [1, 2]))
    index.add(request(1, [3]))
    one, two, three = (key for key, _ in (*request(0, [1, 2]).prefix, *request(1, [3]).prefix))
    assert (one in index, two in index, three in index) == (False, True, True)


def dynamo(layout: Layout) -> tuple[tuple[Engine, ...], KvRouter]:
    pool = engines(layout)
    return pool, KvRouter(pool, 8192, rng())


def prefill_of(router: KvRouter, item: Request) -> int:
    ((_, route),) = router.arrived(item, 0.0)
    assert route.prefill is not None
    return route.prefill


def test_dynamo_costs_tokens_to_prefill_and_blocks() -> None:
    pool, router = dynamo(Layout(2, 1))
    big, small = request(0, [1, 2, 3, 4]), request(1, [5])
    first = prefill_of(router, big)
    assert router.cost(small, first) == (4 * 512 + 512) / 16 + 4 * 32 + 32
    assert router.cost(small, 1 - first) == 512 / 16 + 32
    assert prefill_of(router, small) == 1 - first
    router.answered(big, Route(2, first), 1.0)
    assert router.cost(small, first) == 512 / 16 + 32, "what P has prefilled costs nothing any more"
    pool[first].pool.take_prompt("x", 128, big.prefix)
    pool[first].pool.fill("x", big.prompt)
    assert router.cost(big, first) == 128, "all of it is cached: only its blocks count"


def test_dynamo_shares_blocks_at_p_and_not_at_d() -> None:
    _, router = dynamo(Layout(1, 1))
    router.arrived(request(0, [1, 2]), 0.0)
    router.arrived(request(1, [1, 2]), 0.0)
    assert [worker.active for worker in router._workers] == [64, 128]
    router.answered(request(0, [1, 2]), Route(1, 0), 1.0)
    router.ended(request(0, [1, 2]), Route(1, 0), 2.0)
    assert [worker.active for worker in router._workers] == [64, 64]


def test_dynamo_keeps_requests_while_every_p_has_16_steps_to_prefill() -> None:
    _, router = dynamo(Layout(1, 1))
    long = [request(index, list(range(1000 * index, 1000 * index + 200))) for index in range(3)]
    assert [len(list(router.arrived(each, 0.0))) for each in long] == [1, 1, 0]
    assert [item.index for item, _ in router.answered(long[0], Route(1, 0), 1.0)] == [2]


def test_a_router_of_peers_counts_a_request_at_p_until_p_has_answered_and_at_d_until_its_end() -> None:
    pool = engines(Layout(2, 2))
    router = PeerRouter(pool, PowerOfTwo, PowerOfTwo, Groups(pool), rng())
    item = request(0, [1])
    ((_, route),) = router.arrived(item, 0.0)
    prefill, decode = router._prefill, router._decode
    assert isinstance(prefill, PowerOfTwo)
    assert isinstance(decode, PowerOfTwo)
    assert (sum(prefill.loads), sum(decode.loads)) == (1, 1)
    router.answered(item, route, 1.0)
    assert (sum(prefill.loads), sum(decode.loads)) == (0, 1)
    router.ended(item, route, 2.0)
    assert (sum(prefill.loads), sum(decode.loads)) == (0, 0)
