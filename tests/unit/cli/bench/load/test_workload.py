"""Which requests are sent when."""

import itertools
import random

import pytest

from pdx_cli.bench.load.traces import Chains, Request, Trace
from pdx_cli.bench.load.workload import Fixed, Planned, Traced, Workload


def trace(count: int = 100, gap: float = 0.5) -> Trace:
    chains = Chains()
    return Trace(
        "t",
        tuple(
            Request(i, i * gap, 1024 + i, 64 + i, chains.prefix([0, 1 + i, 200 + i], 1024 + i)) for i in range(count)
        ),
    )


def sent(load: Workload, rate: float, seconds: float, seed: int = 1, repeat: int = 0) -> list[Planned]:
    return list(load.requests(rate, seconds, random.Random(seed), repeat))


def test_poisson_times_have_the_rate_and_depend_on_the_seed() -> None:
    found = sent(Fixed(100, 10), 20.0, 500.0)
    assert len(found) == pytest.approx(10_000, rel=0.05)
    gaps = [b.at - a.at for a, b in itertools.pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)
    assert found == sent(Fixed(100, 10), 20.0, 500.0)
    assert found[:5] != sent(Fixed(100, 10), 20.0, 500.0, seed=2)[:5]
    assert len({each.blocks for each in found}) == len(found)


def test_a_trace_is_replayed_faster_or_slower() -> None:
    load = Traced(trace())
    found = sent(load, 4.0, 10.0)
    assert len(found) == pytest.approx(40, abs=2)
    assert [each.prompt for each in found[:3]] == [1024, 1025, 1026]
    assert found[1].at == pytest.approx(0.25, rel=0.05)
    assert len(sent(load, 40.0, 10.0)) == pytest.approx(400, abs=8), "it begins anew at its end"


def test_tokens_are_scaled_and_prefixes_stay_shared() -> None:
    found = sent(Traced(trace(), token_scale=1 / 32), 4.0, 10.0)
    assert [(each.prompt, each.output) for each in found[:2]] == [(32, 2), (32, 2)]
    assert found[0].blocks[0] == found[1].blocks[0]
    assert found[0].blocks[1][0] != found[1].blocks[1][0]
    for each in found:
        ends = [end for _, end in each.blocks]
        assert ends == sorted(set(ends))
        assert ends[-1] <= each.prompt
    assert Traced(trace(), token_scale=1 / 32).mean_prompt == pytest.approx(33.5, abs=0.6)


def test_repeats_use_other_parts_of_a_trace() -> None:
    assert sent(Traced(trace()), 4.0, 5.0, repeat=1)[0].prompt != sent(Traced(trace()), 4.0, 5.0)[0].prompt


def test_a_trace_with_poisson_times() -> None:
    found = sent(Traced(trace(), poisson=True), 4.0, 100.0)
    assert len(found) == pytest.approx(400, rel=0.15)
    assert len({round(b.at - a.at, 6) for a, b in itertools.pairwise(found)}) > 100
