"""The simulation: every request ends once, equal seeds give equal runs, one request takes the time of the model."""

import random
from dataclasses import replace

import pytest

from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.measures import Outcome, Slo, outcome
from benchmarks.goodput.policies import POLICIES, WITH_SLO
from benchmarks.goodput.report import goodput
from benchmarks.goodput.simulation import NEVER, Layout, Record, Simulation
from benchmarks.goodput.synthetic import generate
from benchmarks.goodput.traces import Chains, Request, Trace
from pdx_sim.profiles import LLAMA_70B

MODEL = EngineModel.of(LLAMA_70B)
AGENTS = generate("agents", 1, 200)


def run(policy: str, layout: Layout, trace: Trace, rate: float, model: EngineModel = MODEL) -> list[Record]:
    engines = layout.engines(model)
    records = Simulation(engines, POLICIES[policy].make(engines, model, random.Random(1)), model).run(
        trace.at_rate(rate)
    )
    for engine in engines:
        assert engine.scheduler.queued == len(engine.scheduler.running) == 0
        assert engine.pool.owners == {}, "every block is given back"
    return records


def requests(*shapes: tuple[float, list[int], int]) -> Trace:
    chains = Chains()
    found = [
        Request(i, at, 512 * len(ids), out, chains.prefix(ids, 512 * len(ids)))
        for i, (at, ids, out) in enumerate(shapes)
    ]
    return Trace("made", tuple(found))


@pytest.mark.parametrize("layout", [Layout(3, 2), Layout(0, 0, 4)], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_exactly_once_and_in_order(policy: str, layout: Layout) -> None:
    records = run(policy, layout, AGENTS, 6.0)
    assert [record.request for record in records] == list(AGENTS.requests)
    for record in records:
        assert NEVER < record.at <= record.sent < record.first <= record.last
        assert record.cached < record.request.prompt
        assert record.route is not None
        whole = record.route.prefill is None
        assert whole == (layout.prefill == 0) or policy == WITH_SLO
        assert whole or record.sent < record.answered < record.first


@pytest.mark.parametrize("policy", POLICIES)
def test_an_equal_seed_gives_an_equal_run(policy: str) -> None:
    one, other = (run(policy, Layout(2, 2), AGENTS, 5.0) for _ in range(2))
    assert [(r.route, r.first, r.last) for r in one] == [(r.route, r.first, r.last) for r in other]


def test_engines_without_room_for_all_preempt_and_lose_nothing() -> None:
    small = replace(MODEL, blocks=130_000 // 16)
    records = run("LeastRequests", Layout(2, 1), AGENTS, 20.0, small)
    assert all(record.last > record.first > record.at for record in records)


def test_a_single_request_takes_the_time_of_its_steps_and_of_the_transfer() -> None:
    trace = requests((0.0, list(range(20)), 11), (100.0, [99], 1))
    first = run("LeastRequests", Layout(1, 1), trace, trace.rate)[0]
    cost, prompt = MODEL.cost, 20 * 512
    prefill = cost.seconds(1, 8192) + cost.seconds(1, prompt - 8192)
    transfer = prompt * MODEL.kv_bytes_per_token / (MODEL.gigabytes_per_second * 1e9)
    assert first.answered == pytest.approx(prefill)
    assert first.ttft == pytest.approx(prefill + transfer + cost.seconds(1, 0), rel=1e-6)
    assert first.tpot == pytest.approx(cost.seconds(1, 0))


def test_a_prefix_that_p_has_is_not_computed_and_what_d_has_is_not_transferred() -> None:
    trace = requests((0.0, [0, 1, 2, 3], 1), (50.0, [0, 1, 2, 3, 4], 1), (100.0, [9], 1))
    records = run("LeastRequests", Layout(1, 1), trace, trace.rate)
    assert [record.cached for record in records] == [0, 4 * 512, 0]
    assert records[1].answered - records[1].at == pytest.approx(MODEL.cost.seconds(1, 512))
    moved = records[1].first - records[1].answered - MODEL.cost.seconds(1, 0)
    assert moved == pytest.approx(512 * MODEL.kv_bytes_per_token / (MODEL.gigabytes_per_second * 1e9))


def test_a_request_that_comes_during_decode_steps_waits_only_for_the_one_under_way() -> None:
    trace = requests((0.0, [0], 500), (5.0, [1], 1), (1000.0, [2], 1))
    engines = Layout(0, 0, 1)
    records = run("LeastRequests", engines, trace, trace.rate)
    step = MODEL.cost.seconds(1, 0)
    assert records[1].ttft <= step + MODEL.cost.seconds(2, 512) + 1e-9


def test_least_requests_spreads_and_affinity_keeps() -> None:
    shapes = [(float(i), [0, 1, 2, 10 + i], 5) for i in range(12)]
    trace = requests(*shapes)
    spread = {record.route for record in run("LeastRequests", Layout(3, 1), trace, trace.rate)}
    kept = {record.route for record in run("PrefixAffinity", Layout(3, 1), trace, trace.rate)}
    assert (len(spread), len(kept)) == (3, 1)


def test_expected_wait_follows_the_cache_until_the_backlog_costs_more() -> None:
    alone = requests(*[(5.0 * i, [0, 1, 2, 3, 10 + i], 5) for i in range(12)])
    assert sum(r.cached > 0 for r in run("ExpectedWait", Layout(3, 1), alone, alone.rate)) >= 9
    long = list(range(200))
    burst = requests(
        (0.0, long, 1),
        *[(30.0 + 0.001 * i, [*long[:100], 1000 + i, *range(2000 + 200 * i, 2200 + 200 * i)], 1) for i in range(6)],
    )
    assert len({r.route for r in run("ExpectedWait", Layout(3, 1), burst, burst.rate)[1:]}) == 3


def result(rate: float, share: float) -> Outcome:
    return Outcome(rate, share, share, 1.0, 0.0, 1.0, 2.0, 0.01, 0.02)


def test_goodput_lies_where_the_share_crosses_90_percent() -> None:
    assert goodput([result(1, 0.99), result(3, 0.80), result(2, 0.95)]) == pytest.approx(2 + 0.05 / 0.15)
    assert goodput([result(1, 0.95), result(2, 0.91)]) == 2
    assert goodput([result(1, 0.8)]) is None
    dips = [result(1, 0.95), result(2, 0.88), result(3, 0.95), result(4, 0.85)]
    assert goodput(dips) == pytest.approx(3.5), "the highest rate counts"


def test_the_outcome_counts_requests_within_both_objectives() -> None:
    record = Record(Request(0, 0.0, 10, 3, ()), 1.0, first=2.0, last=2.2, cached=5)
    slow = Record(Request(1, 0.0, 10, 3, ()), 1.0, first=2.0, last=4.0)
    late = Record(Request(2, 0.0, 10, 3, ()), 1.0, first=9.0, last=9.1)
    found = outcome([record, slow, late, record], 1.0, Slo(2.0, 0.15), 0.0)
    assert (found.share, found.ttft_share, found.tpot_share) == (0.5, 0.75, 0.75)
    assert found.hit_share == 0.25
    assert (found.ttft_p50, found.ttft_p99) == (1.0, 8.0)
