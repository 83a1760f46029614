"""What the requests of one step show."""

import pytest

from pdx_cli.bench.analysis.steps import Slo, is_certain, step_result
from pdx_cli.bench.load.records import Failure, Record

SLO = Slo(1.0, 0.05)


def record(
    index: int, ttft: float = 0.5, tpot: float = 0.04, *, warm_up: bool = False, failure: Failure | None = None
) -> Record:
    last = index + ttft + 10 * tpot
    return Record(index, index, index, index + ttft, last, last, 100, 11, (tpot,) * 10, failure, warm_up=warm_up)


def test_good_requests_are_within_both() -> None:
    records = [
        record(0, ttft=9.0, warm_up=True),
        record(1),
        record(2, ttft=1.5),
        record(3, tpot=0.06),
        record(4, failure=Failure.STATUS),
    ]
    found = step_result(records, SLO, 1.0, 0, 4.0, 0.001, is_valid=True)
    assert (found.count, found.good, found.ttft_misses, found.tpot_misses) == (4, 1, 1, 1)
    assert found.failures == {"status": 1}
    assert found.share == 0.25
    assert found.ttft.most == pytest.approx(1.5)
    assert (found.prompt_tokens, found.output_tokens) == (300, 33)
    assert found.measured.rate == 1.0


def test_a_hopeless_step_ends_early() -> None:
    bad = [record(i, ttft=3.0) for i in range(25)]
    assert is_certain(bad, [], SLO, expected=100)
    assert not is_certain(bad, [], SLO, expected=300)
    assert is_certain(bad[:10], [2.0] * 15, SLO, expected=100)
    assert not is_certain(bad[:10], [0.5] * 15, SLO, expected=100)
    assert not is_certain([record(i, ttft=3.0, warm_up=True) for i in range(90)], [], SLO, expected=100)


def test_the_slo_as_text() -> None:
    assert str(Slo(1.5, 0.05)) == "TTFT 1.5 s, TPOT 50 ms"
