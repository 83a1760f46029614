"""The verdict's sentences for results that are made up."""

from dataclasses import replace

import pytest

from pdx_cli.bench.analysis.arms import Arm, ArmResult, goodputs, next_step
from pdx_cli.bench.analysis.bottleneck import Bottleneck
from pdx_cli.bench.analysis.search import Search
from pdx_cli.bench.analysis.steps import Slo, StepResult, step_result
from pdx_cli.bench.analysis.verdict import Kind, judge, measurably_more
from pdx_cli.bench.load.records import Record

SLO = Slo(1.0, 0.05)
WHOLE = Arm("aggregated 4", aggregated=4)
SPLIT = Arm("P:D 2:2", split=True, prefill=2, decode=2)


def step(rate: float, share: float = 1.0, repeat: int = 0, *, valid: bool = True) -> StepResult:
    records = [Record(i, i, i, i + (0.5 if i < 100 * share else 2.0), i + 3, i + 3, 500, 51) for i in range(100)]
    found = step_result(records, SLO, rate, repeat, 100, 0.0, is_valid=valid)
    return replace(found, phases={"prefill": 0.3, "transfer": 0.05, "first_step": 0.02, "queue": 0.13})


def result(arm: Arm, *goodputs: float, limit: Bottleneck = Bottleneck.PREFILL, **more: object) -> ArmResult:
    steps = tuple(step(rate, repeat=i) for i, rate in enumerate(goodputs))
    return ArmResult(arm, goodputs, steps, limit, **more)  # type: ignore[arg-type]


def test_a_difference_must_exceed_the_spread() -> None:
    assert measurably_more(result(SPLIT, 12, 12.2, 11.9), result(WHOLE, 10, 10.3, 10.1))
    assert not measurably_more(result(SPLIT, 12, 14, 10), result(WHOLE, 10, 10.3, 10.1))
    assert not measurably_more(result(SPLIT, 10.4, 10.4, 10.4), result(WHOLE, 10, 10, 10))


def test_it_pays() -> None:
    other = result(replace(SPLIT, name="P:D 1:3", prefill=1, decode=3), 7, 7.1, 7)
    found = judge([result(WHOLE, 10, 10.1, 10), result(SPLIT, 15, 15.2, 15.1), other], SLO)
    assert (found.kind, found.winner) == (Kind.PAYS, "P:D 2:2")
    assert found.factor == pytest.approx(1.505, rel=0.01)
    assert found.sentences[0].startswith("Splitting pays: x1.50 good requests (15.1 ± 0.1 req/s against 10 ± 0.05")
    assert "at P:D 2:2, not at 1:3." in found.sentences[0]
    assert "At P:D 1:3, the prefill engines are short." in found.sentences
    assert "What would change it: a hand-off that takes more than 550 ms; prompts below about 117 tokens" in str(found)


def test_it_does_not_pay() -> None:
    found = judge([result(WHOLE, 10, 10.1, 10), result(SPLIT, 5, 5, 5, limit=Bottleneck.TRANSFER)], SLO)
    assert found.kind is Kind.DOES_NOT_PAY
    assert "aggregated 4 serves x2.01 the good requests" in found.sentences[0]
    assert "a faster link (the KV of one request takes 50 ms)" in str(found)


def test_the_best_chunks_are_named_with_their_steps() -> None:
    worse = result(replace(WHOLE, name="aggregated 4, chunks of 512", chunk=512), 8, 8, 8)
    best = result(replace(WHOLE, chunk=2048, interval=4), 10, 10, 10)
    found = judge([worse, best, result(SPLIT, 5, 5, 5)], SLO)
    assert (
        "chunks of 2048 tokens every 4 steps are best (spec.aggregated.chunkedPrefill.maxBatchedTokens and "
        "--prefill-schedule-interval 4 in spec.aggregated.args; aggregated 4, chunks of 512: 8" in str(found)
    )


def test_a_looser_slo_would_change_it() -> None:
    loser = result(WHOLE, 10, 10, 10)
    busy = replace(step(15.0, 0.5), tpot_misses=50, ttft_misses=0, tpot=replace(step(15.0).tpot, p90=0.07))
    found = judge([replace(loser, steps=(*loser.steps, busy)), result(SPLIT, 15, 15, 15)], SLO)
    assert "a TPOT SLO above 70 ms instead of 50 ms" in str(found)


def test_no_measurable_difference() -> None:
    found = judge([result(WHOLE, 10, 11, 10), result(SPLIT, 10, 10.2, 11)], SLO)
    assert (found.kind, found.winner) == (Kind.NO_DIFFERENCE, "")
    assert found.sentences[0].startswith("No measurable difference: 10.4 ± 0.5 req/s against")


def test_engines_that_share_cores() -> None:
    reason = "the engines share the cores of this machine"
    found = judge([result(WHOLE, 10, 10, 10, shares_cores=reason), result(SPLIT, 20, 20, 20)], SLO)
    assert found.kind is Kind.INVALID
    assert f"This says nothing about splitting: {reason}." in found.sentences


def test_a_generator_that_was_the_limit() -> None:
    late = replace(result(SPLIT, 20), steps=(step(20.0, valid=False),))
    found = judge([result(WHOLE, 10, 10, 10), late], SLO)
    assert found.kind is Kind.INVALID
    assert "the load generator was the limit for P:D 2:2" in str(found)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (
            result(SPLIT, 12, 12, 12),
            "P:D 2:2 serves 12 ± 0 req/s within the SLO; prefill compute is the limit.",
        ),
        (
            result(SPLIT, 12, limit=Bottleneck.NONE),
            "P:D 2:2 serves 12 ± 0 req/s within the SLO; no measured rate was too high.",
        ),
        (result(SPLIT, 12, limit=Bottleneck.UNCLEAR), "P:D 2:2 serves 12 ± 0 req/s within the SLO."),
        (ArmResult(SPLIT, (0.0,), (step(1.0, 0.2),)), "P:D 2:2 meets the SLO at no measured rate."),
    ],
)
def test_one_arm(one: ArmResult, text: str) -> None:
    found = judge([one], SLO)
    assert found.kind is Kind.ONE_SIDED
    assert found.sentences == (text, "Whether splitting pays needs both arms: use --compare.")


def test_one_arm_without_a_request() -> None:
    none = ArmResult(SPLIT, (0.0,), (step_result([], SLO, 0.01, 0, 1.0, 0.0, is_valid=True),))
    expected = "P:D 2:2 had no request that counts: raise --rate, or lengthen --duration."
    assert judge([none], SLO).sentences == (expected,)


def test_nothing_is_good() -> None:
    bad = (step(1.0, 0.2),)
    found = judge([ArmResult(WHOLE, (0.0,), bad), ArmResult(SPLIT, (0.0,), bad)], SLO)
    assert found.kind is Kind.NOTHING_GOOD
    found = judge([result(WHOLE, 10, 10, 10), ArmResult(SPLIT, (0.0,), bad, Bottleneck.DECODE)], SLO)
    assert found.kind is Kind.DOES_NOT_PAY
    assert "P:D 2:2 serves 90 % within the SLO at no rate." in found.sentences


def test_an_arm_that_was_not_measured() -> None:
    found = judge(
        [result(WHOLE, 10, 10, 10), result(SPLIT, 12, 12, 12), ArmResult(SPLIT, (), (), problem="no device")], SLO
    )
    assert "P:D 2:2 was not measured: no device." in found.sentences


def test_the_steps_of_an_arm() -> None:
    search, steps = Search(1.0), list[StepResult]()
    while (planned := next_step(search, 3, steps)) is not None:
        rate, repeat = planned
        steps.append(step(rate, float(rate < 5 + repeat / 10), repeat))
    assert {each.repeat for each in steps} == {0, 1, 2}
    assert goodputs(search, 3, steps) == pytest.approx((5.0, 5.1, 5.2), rel=0.05)
    assert next_step(search, 3, [step(0.0015, 0.0)]) is None, "an arm that meets the goal at no rate is not repeated"
