"""ITL = a + b * batch: what measurements show, how soon they are followed, and what does not count."""

import random

import pytest

from pdx_proxy.balancing.decode.itl import CommonSlope, EngineITL, Line, common_line
from pdx_proxy.balancing.decode.measurement import EngineCounts, measured
from pdx_proxy.balancing.decode.streams import StreamMeter, StreamProgress
from pdx_proxy.balancing.load_reports import LoadReport

BASE, SLOPE = 0.018, 0.0001


def learn(engine: EngineITL, batches: list[int], factor: float = 1.0, at: float = 0.0) -> float:
    """One measurement in each second; return when the next one would come."""
    for second, batch in enumerate(batches):
        engine.add(batch, factor * (BASE + SLOPE * batch), 50.0, at + second)
    return at + len(batches)


def test_a_batch_that_varies_shows_both_coefficients() -> None:
    engine = EngineITL(CommonSlope())
    learn(engine, [10 + (37 * second) % 150 for second in range(30)])
    line = engine.line()
    assert line.base == pytest.approx(BASE, rel=0.03)
    assert line.slope == pytest.approx(SLOPE, rel=0.2)
    assert line.batch(0.045) == pytest.approx((0.045 - BASE) / SLOPE, rel=0.25)


def test_the_present_batch_is_exact_where_the_slope_is_a_guess() -> None:
    engine = EngineITL(CommonSlope())
    learn(engine, [40] * 20)
    line = engine.line()
    assert line.at(40) == pytest.approx(BASE + SLOPE * 40, rel=0.01)
    assert 0 < line.base < BASE + SLOPE * 40, "a larger batch is expected to take longer"


def test_noise_makes_no_line_fall() -> None:
    rng, common = random.Random(3), CommonSlope()
    engine = EngineITL(common)
    for second in range(60):
        batch = rng.randint(30, 34)
        engine.add(batch, (BASE + SLOPE * batch) * rng.uniform(0.8, 1.2), 50.0, second)
        line = engine.line()
        assert line.slope >= 0
        assert line.base > 0
        assert line.at(32) == pytest.approx(BASE + SLOPE * 32, rel=0.2)


def test_a_slope_stays_while_the_batch_does_not_vary() -> None:
    common = CommonSlope()
    engine = EngineITL(common)
    at = learn(engine, [10 + (37 * second) % 150 for second in range(30)])
    learn(engine, [80] * 120, at=at)
    assert engine.line().slope == pytest.approx(SLOPE, rel=0.3)


@pytest.mark.parametrize("factor", [2.0, 0.5], ids=["slower", "faster"])
def test_an_engine_that_changes_is_followed_within_30_seconds(factor: float) -> None:
    common = CommonSlope()
    engine, other = EngineITL(common), EngineITL(common)
    batches = [40 + (7 * second) % 20 for second in range(30)]
    learn(other, batches)
    at = learn(engine, batches)
    for second, batch in enumerate(batches):
        engine.add(batch, factor * (BASE + SLOPE * batch), 50.0, at + second)
        other.add(batch, BASE + SLOPE * batch, 50.0, at + second)
    assert engine.line().at(50) == pytest.approx(factor * (BASE + SLOPE * 50), rel=0.1)
    assert other.line().at(50) == pytest.approx(BASE + SLOPE * 50, rel=0.05)


def test_engines_that_are_equally_fast_with_unequal_batches_are_not_equal() -> None:
    """The policy gives a slow engine a smaller batch. Their common slope must not become flat by that."""
    common = CommonSlope()
    slow, fast = EngineITL(common), EngineITL(common)
    for second in range(60):
        few, many = 20 + second % 9, 110 + (7 * second) % 20
        slow.add(few, 1.5 * (BASE + SLOPE * few), 50.0, second)
        fast.add(many, BASE + SLOPE * many, 50.0, second)
    assert slow.line().at(24) == pytest.approx(fast.line().at(120), rel=0.05)
    assert slow.line().at(70) > 1.25 * fast.line().at(70)


@pytest.mark.parametrize(("bases", "expected"), [((1, 9), 1), ((9, 1, 5), 5), ((1, 5, 6, 9), 5), ((3,), 3)])
def test_the_usual_engine_is_the_median(bases: tuple[float, ...], expected: float) -> None:
    assert common_line([Line(base, 0.0) for base in bases], 1.0).base == expected


def test_an_old_measurement_is_stale() -> None:
    engine = EngineITL(CommonSlope())
    learn(engine, [10], at=100.0)
    assert [engine.stale(now) for now in (119.0, 121.0)] == [False, True]


def test_two_seconds_of_streams_are_enough_and_a_few_tokens_are_not() -> None:
    common = CommonSlope()
    engine = EngineITL(common)
    engine.add(4, 0.02, 5.0, 1.0)
    engine.add(4, 0.02, 5.0, 2.0)
    assert not common.learned
    engine.add(4, 0.02, 40.0, 3.0)
    engine.add(4, 0.02, 40.0, 4.0)
    assert common.learned


def test_the_largest_batch_of_a_line() -> None:
    assert Line(0.02, 0.001).batch(0.05) == pytest.approx(30)
    assert Line(0.06, 0.001).batch(0.05) < 0
    assert Line(0.02, 0.0).batch(0.05) == 0


class Open:
    """A stream that the gateway relays."""

    def __init__(self, source: str, chunks: int = 0) -> None:
        self.source = source
        self.relayed_chunks = chunks
        self.paused = False


def test_progress_counts_streams_that_were_open_the_whole_time() -> None:
    meter = StreamMeter()
    kept, ended, slow_client = Open("d-0", 10), Open("d-0", 7), Open("d-0", 5)
    meter.update([kept, ended, slow_client], 10.0)
    kept.relayed_chunks, slow_client.relayed_chunks, slow_client.paused = 60, 6, True
    found = meter.update([kept, slow_client, Open("d-1", 30)], 11.0)
    assert {name: (progress.seconds, progress.tokens) for name, progress in found.items()} == {"d-0": (1.0, 50)}
    slow_client.paused, slow_client.relayed_chunks = False, 40
    kept.relayed_chunks = 110
    found = meter.update([kept, slow_client], 12.0)
    assert (found["d-0"].seconds, found["d-0"].tokens) == (1.0, 50), "the pause is over, but not for all of this time"


def test_a_stream_without_tokens_counts_too() -> None:
    meter = StreamMeter()
    fast, stuck = Open("d-0", 0), Open("d-0", 3)
    meter.update([fast, stuck], 0.0)
    fast.relayed_chunks = 20
    progress = meter.update([fast, stuck], 1.0)["d-0"]
    assert (progress.seconds, progress.tokens) == (2.0, 20)


def progress(seconds: float, tokens: float) -> StreamProgress:
    found = StreamProgress()
    found.seconds, found.tokens = seconds, tokens
    return found


def report(running: float, seconds: float = 0.0, tokens: float = 0.0) -> LoadReport:
    return LoadReport(running, 0, 0.1, decode_seconds=seconds, decode_tokens=tokens)


@pytest.mark.parametrize(
    ("streams", "before", "now", "expected"),
    [
        pytest.param(progress(4, 200), report(4), report(6), (5, 0.02), id="streams alone"),
        pytest.param(progress(4, 200), report(4, 10, 400), report(4, 14.2, 600), (4, 0.02), id="the engine agrees"),
        pytest.param(progress(4, 50), report(4, 10, 400), report(4, 14, 600), (4, 0.02), id="four events in one piece"),
        pytest.param(progress(4, 200), report(4, 10, 400), report(4, 14, 800), (4, 0.01), id="two tokens in one event"),
        pytest.param(None, report(4, 10, 400), report(4, 14, 600), (4, 0.02), id="no streams"),
        pytest.param(progress(4, 200), report(4, 10, 400), report(4, 1, 50), (4, 0.02), id="counters that began anew"),
        pytest.param(
            progress(1, 50), None, report(0, 14, 600), (1, 0.02), id="the first report, and none runs any more"
        ),
        pytest.param(None, None, report(4, 14, 600), None, id="nothing to compare with"),
        pytest.param(progress(4, 0), report(4, 10, 400), report(4, 10, 400), None, id="no tokens"),
    ],
)
def test_the_engine_s_own_counters_check_its_streams(
    streams: StreamProgress | None, before: LoadReport | None, now: LoadReport, expected: tuple[float, float] | None
) -> None:
    then = None if before is None else EngineCounts(before.running, before)
    found = measured(streams, then, EngineCounts(now.running, now))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.batch, found.itl) == pytest.approx(expected)
