"""Where the time went, by the gateway's phases and the engines' counters; and what limits an arm."""

from dataclasses import replace

import pytest

from pdx_api.vllm_metrics import Mean, read_metrics
from pdx_cli.bench.analysis.bottleneck import Bottleneck, bottleneck
from pdx_cli.bench.analysis.counters import (
    EngineTotals,
    GatewayTotals,
    moved_share,
    read_gateway,
)
from pdx_cli.bench.analysis.phases import (
    TO_FIRST_TOKEN,
    GatewayMeans,
    Phase,
    adds_up,
    from_records,
    from_totals,
    of_split,
    of_whole,
)
from pdx_cli.bench.analysis.steps import Slo, StepResult, step_result
from pdx_cli.bench.load.records import Record
from pdx_sim.core.counters import Counts, metrics_text
from pdx_sim.settings import SimSettings

GATEWAY = GatewayMeans(queue=0.1, prefill=0.5, handoff=0.2, first=0.81)


def engine(queue: float, prefill: float, latency: float, transfer: float = 0.0) -> EngineTotals:
    moved = Mean(10 * transfer, 10 if transfer else 0)
    return EngineTotals(Mean(10 * queue, 10), Mean(10 * prefill, 10), Mean(10 * latency, 10), moved)


def test_phases_of_split_requests_add_up() -> None:
    found = of_split(0.82, 2.0, GATEWAY, engine(0.15, 0.33, 0.49), engine(0.12, 0.03, 2.0, 0.06))
    assert found == pytest.approx(
        {
            Phase.GATEWAY_QUEUE: 0.1,
            Phase.QUEUE: 0.15,
            Phase.PREFILL: 0.34,
            Phase.TRANSFER: 0.06,
            Phase.DECODE_QUEUE: 0.11,
            Phase.FIRST_STEP: 0.03,
            Phase.GATEWAY: 0.02,
            Phase.OUTSIDE: 0.01,
            Phase.DECODE: 2.0,
        }
    )
    assert sum(found[phase] for phase in TO_FIRST_TOKEN) == pytest.approx(0.82)


def test_phases_of_whole_requests_add_up() -> None:
    found = of_whole(0.5, 1.0, GatewayMeans(0.1, 0.0, 0.0, 0.49), engine(0.2, 0.15, 1.4))
    assert (found[Phase.GATEWAY_QUEUE], found[Phase.QUEUE]) == pytest.approx((0.1, 0.2))
    assert (found[Phase.PREFILL], found[Phase.GATEWAY]) == pytest.approx((0.15, 0.04))
    assert sum(found[phase] for phase in TO_FIRST_TOKEN) == pytest.approx(0.5)


def test_without_counters_of_engines_the_legs_remain() -> None:
    found = of_split(0.82, 2.0, GATEWAY, EngineTotals(), EngineTotals())
    assert (found[Phase.PREFILL], found[Phase.DECODE_QUEUE], found[Phase.TRANSFER]) == pytest.approx((0.5, 0.2, 0.0))


@pytest.mark.parametrize(
    ("outside", "whole", "fine"), [(0.0019, 0.01, True), (0.0021, 0.01, False), (0.019, 1.0, True), (-0.03, 1.0, False)]
)
def test_within_2_percent_or_2_ms(outside: float, whole: float, fine: bool) -> None:
    assert adds_up({Phase.PREFILL: whole - outside, Phase.OUTSIDE: outside}) is fine


def test_the_gateway_s_own_phases() -> None:
    timing = {"queue": 0.0, "first": 0.3, "prefill": 0.2, "handoff": 0.1}
    records = [
        Record(0, 0, 0, timing=timing),
        Record(1, 0, 0, timing={**timing, "queue": 0.4, "first": 0.7}),
        Record(2, 0, 0),
    ]
    found = from_records(records)
    assert found is not None
    assert (found.queue, found.prefill, found.handoff, found.first) == pytest.approx((0.2, 0.2, 0.1, 0.5))
    assert from_records(records[2:]) is None


def test_the_gateway_s_histograms() -> None:
    def page(first: float, queue: float, requests: int) -> bytes:
        lines = [
            f'pdx_phase_seconds_sum{{phase="first_token"}} {first}',
            f'pdx_phase_seconds_count{{phase="first_token"}} {requests}',
            f'pdx_phase_seconds_sum{{phase="queue"}} {queue}',
            'pdx_phase_seconds_count{phase="queue"} 1',
        ]
        return "\n".join(["# TYPE pdx_phase_seconds histogram", *lines, ""]).encode()

    grown = read_gateway(page(9.0, 3.0, 20)) - read_gateway(page(1.0, 1.0, 10))
    found = from_totals(grown)
    assert found is not None
    assert (found.first, found.queue, found.prefill) == pytest.approx((0.8, 0.2, 0.0))
    assert (found.split, found.alone) == pytest.approx((0.0, 0.6))
    assert from_totals(GatewayTotals()) is None


def test_requests_without_a_p() -> None:
    """One of two: what D does counts as D's, whether each request's phases are known or only the histograms."""
    split, alone = {"queue": 0.2, "prefill": 0.5, "handoff": 0.1, "first": 0.81}, {"queue": 0.0, "first": 0.3}
    records = from_records([Record(0, 0, 0, timing=split), Record(1, 0, 0, timing=alone)])
    sums = {"queue": 0.2, "to_prefill": 0.01, "prefill": 0.5, "handoff": 0.1, "first_token": 1.11}
    counts = {"first_token": 2}
    totals = from_totals(GatewayTotals({name: Mean(total, counts.get(name, 1)) for name, total in sums.items()}))
    for means in (records, totals):
        assert means is not None
        assert (means.split, means.alone, means.decode) == pytest.approx((0.5, 0.15, 0.2))
        found = of_split(0.555, 1.0, means, engine(0.05, 0.4, 0.48), engine(0.02, 0.16, 1.0, 0.04))
        assert (found[Phase.QUEUE], found[Phase.PREFILL]) == pytest.approx((0.025, 0.215))
        assert (found[Phase.FIRST_STEP], found[Phase.TRANSFER]) == pytest.approx((0.16, 0.02))
        assert (found[Phase.DECODE_QUEUE], found[Phase.GATEWAY]) == pytest.approx((0.02, 0.015))


def test_a_push_overlaps_with_the_prefill() -> None:
    """D's wait contains P's prefill. P moves the KV, and counts it."""
    means = GatewayMeans(queue=0.1, prefill=0.5, handoff=0.8, first=0.91)
    found = of_split(0.92, 1.0, means, engine(0.1, 0.4, 0.5, 0.2), engine(0.7, 0.05, 1.0))
    assert (found[Phase.PREFILL], found[Phase.TRANSFER]) == pytest.approx((0.4, 0.2))
    assert (found[Phase.FIRST_STEP], found[Phase.DECODE_QUEUE]) == pytest.approx((0.05, 0.06))
    assert found[Phase.GATEWAY] == pytest.approx(0.0)


def test_a_page_of_an_engine() -> None:
    counts = Counts(prompt_tokens_local=100, prompt_tokens_external=300, prompt_tokens_found=50, generation_tokens=7)
    counts.expired = 2
    found = EngineTotals.of(read_metrics(metrics_text(counts, SimSettings()).encode()))
    assert (found.prompt_tokens, found.external_tokens, found.computed_tokens, found.cached_tokens) == (
        450,
        300,
        100,
        50,
    )
    assert (found.generated_tokens, found.expired) == (7, 2)
    assert moved_share(found) == pytest.approx(2 / 3)
    assert (found - found).prompt_tokens == 0
    assert EngineTotals.sum([found, found]).external_tokens == 600


def step(rate: float, good: bool, phases: dict[Phase, float], **more: object) -> StepResult:
    times = [Record(i, i, i, i + 0.1, i + 1, i + 1, 10, 11) for i in range(10)]
    result = step_result(times, Slo(1.0 if good else 0.01, 1.0), rate, 0, 10, 0.0, is_valid=True)
    return replace(result, phases={str(k): v for k, v in phases.items()}, **more)  # type: ignore[arg-type]


CALM = {Phase.QUEUE: 0.01, Phase.PREFILL: 0.5, Phase.TRANSFER: 0.02, Phase.FIRST_STEP: 0.02, Phase.GATEWAY: 0.001}


@pytest.mark.parametrize(
    ("grown", "limit"),
    [
        (Phase.QUEUE, Bottleneck.PREFILL),
        (Phase.PREFILL, Bottleneck.PREFILL),
        (Phase.TRANSFER, Bottleneck.TRANSFER),
        (Phase.DECODE_QUEUE, Bottleneck.DECODE),
        (Phase.GATEWAY, Bottleneck.GATEWAY),
        (Phase.OUTSIDE, Bottleneck.GATEWAY),
    ],
)
def test_what_grows_is_the_limit(grown: Phase, limit: Bottleneck) -> None:
    busy = {**CALM, grown: CALM.get(grown, 0.0) + 1.0}
    assert bottleneck([step(1, True, CALM), step(2, False, busy)], 2) is limit


@pytest.mark.parametrize(
    ("prefills", "grown", "limit"),
    [
        (1, {}, Bottleneck.PREFILL),  # two prompts of 0.5 s in a second
        (1, {Phase.DECODE_QUEUE: 0.1}, Bottleneck.PREFILL),
        (4, {}, Bottleneck.DECODE),
        (4, {Phase.DECODE_QUEUE: 0.1, Phase.TRANSFER: 0.05}, Bottleneck.DECODE),
        (4, {Phase.TRANSFER: 0.3}, Bottleneck.TRANSFER),
    ],
)
def test_the_gateway_queues_for_what_is_full(prefills: int, grown: dict[Phase, float], limit: Bottleneck) -> None:
    """It keeps what engines have no room for: that is their limit, not the gateway's."""
    busy = {phase: CALM.get(phase, 0.0) + grown.get(phase, 0.0) for phase in Phase}
    found = bottleneck([step(1, True, CALM), step(2, False, {**busy, Phase.GATEWAY_QUEUE: 3.0})], prefills)
    assert found is limit
    assert (
        bottleneck([step(1, True, CALM), step(2, False, {**busy, Phase.GATEWAY_QUEUE: 3.0})], 0) is Bottleneck.ENGINES
    )


def test_limits_that_phases_do_not_show() -> None:
    calm, busy = step(1, True, CALM), step(2, False, {**CALM, Phase.QUEUE: 0.02}, ttft_misses=0, tpot_misses=9)
    assert bottleneck([calm, busy], 2) is Bottleneck.DECODE
    assert bottleneck([calm, busy], 0) is Bottleneck.INTERFERENCE
    assert bottleneck([calm], 2) is Bottleneck.NONE
    assert bottleneck([calm, replace(busy, is_valid=False)], 2) is Bottleneck.CLIENT
    assert bottleneck([replace(busy, phases={})], 2) is Bottleneck.UNCLEAR


def test_a_gateway_that_has_not_grown_is_not_the_limit() -> None:
    """Also where chance has made every phase of the engines a little shorter than in the calm step."""
    calm, shorter = step(1, True, CALM), {phase: 0.98 * seconds for phase, seconds in CALM.items()}
    missed = step(2, False, {**shorter, Phase.GATEWAY: 0.001}, ttft_misses=0, tpot_misses=9)
    assert bottleneck([calm, missed], 2) is Bottleneck.DECODE
    slightly = replace(missed, phases={**missed.phases, "gateway": 0.02})
    assert bottleneck([calm, slightly], 2) is Bottleneck.DECODE, "less than the time of a token"
    much = replace(missed, phases={**missed.phases, "gateway": 0.3})
    assert bottleneck([calm, much], 2) is Bottleneck.GATEWAY
