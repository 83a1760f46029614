"""The limit of an engine follows what it runs, with engines that are simulated by three numbers."""

from dataclasses import replace
from math import ceil, floor
from typing import Any

import pytest

from pdx_api.names import Order, Role
from pdx_proxy.balancing.engine_limits import (
    FIRST_LIMIT,
    UNREPORTED_LIMIT,
    EngineLimit,
    EngineSample,
    Legs,
    LimitEstimator,
    Work,
    own_limit,
    room,
    under_way,
)
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.config.settings import Address, EndpointSpec, Limits
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot


def fill(
    estimator: LimitEstimator, most: int, rounds: int, kv_each: float = 0.0, seconds: float = 0.0, begin: float = 0.0
) -> list[EngineLimit]:
    """Report what an engine that runs `most` requests shows when it always gets as many as its limit allows.

    `seconds`: how long its answers take; 0: it does not report that. `begin`: the time before the first report.
    """
    found = [EngineLimit(FIRST_LIMIT)]
    ended = begin  # no fewer than in an earlier series
    for at in range(1, rounds + 1):
        legs = int(found[-1].requests)
        running = min(legs, most)
        ended += running / seconds if seconds else 0.0
        done = floor(ended)
        kv_use = running * kv_each
        sample = EngineSample(
            begin + at, running, legs - running, kv_use=kv_use, completed=done, seconds=done * seconds
        )
        found.append(estimator.update(sample))
    return found


@pytest.mark.parametrize("most", [1, 2, 3, 4, 16, 100, 256, 1024])
def test_a_decode_runs_what_it_can_and_its_queue_is_short(most: int) -> None:
    limits = fill(LimitEstimator(Work.DECODE), most, 60)
    queued = [max(0, int(limit.requests) - most) for limit in limits]
    assert max(queued) <= max(4, min(most, UNREPORTED_LIMIT)), "while the limit grows"
    assert max(queued[30:]) <= max(4, most // 10), "at any time afterwards"
    assert min(int(limit.requests) for limit in limits[-10:]) >= most, "nothing idles"
    usual = sorted(queued[-20:])[10]
    assert usual == int(room(Work.DECODE, most))
    assert usual < most, "a new request waits for one request's duration at most"


def test_it_takes_few_reports_to_reach_a_large_engine() -> None:
    limits = fill(LimitEstimator(Work.DECODE), 256, 60)
    assert [limit.requests for limit in limits[:7]] == [4, 8, 16, 32, 64, 128, 256], "it doubles"
    assert limits[3].grows
    assert not limits[-1].grows
    large = fill(LimitEstimator(Work.DECODE), 1024, 60)
    assert next(n for n, limit in enumerate(large) if limit.requests >= 1024) == 9, "256 more each time"


@pytest.mark.parametrize("work", list(Work))
@pytest.mark.parametrize("runs", [1, 8, 512])
def test_an_idle_engine_gets_at_once_what_it_is_known_to_run(runs: int, work: Work) -> None:
    estimator = LimitEstimator(work, runs)
    first = estimator.update(EngineSample(1, 0, 0, cache_tokens=1 << 20))
    assert (first.requests, first.grows) == (runs + room(work, runs), False)
    for at in range(2, 20):
        assert estimator.update(EngineSample(at, runs, 2)).requests == first.requests, "a full engine is no surprise"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("seconds", "reserve"), [(0.2, 2.0), (0.5, 1.6), (10.0, 0.08)], ids=["0.2 s", "0.5 s", "10 s"])
def test_the_longer_answers_take_the_fewer_wait_in_a_full_engine(seconds: float, reserve: float, known: bool) -> None:
    estimator = LimitEstimator(Work.DECODE, 4 * known)
    estimator.update(EngineSample(1, 4, 0, completed=100, seconds=100 * seconds))
    limit = estimator.update(EngineSample(2, 4, 1, completed=101, seconds=101 * seconds))
    limit = estimator.update(EngineSample(3, 4, 1, completed=102, seconds=102 * seconds))
    assert limit.requests == pytest.approx(4 + reserve)


def test_answers_that_do_not_end_are_long() -> None:
    """Those before them were short, such as a warm-up's."""
    estimator = LimitEstimator(Work.DECODE, 4)
    estimator.update(EngineSample(1, 1, 0, completed=1, seconds=0.3))
    assert estimator.update(EngineSample(2, 4, 0, completed=2, seconds=0.6)).requests == 4 + 2
    assert estimator.update(EngineSample(10, 4, 2, completed=2, seconds=0.6)).requests == pytest.approx(4 + 0.1)
    assert estimator.update(EngineSample(11, 4, 0, completed=6, seconds=36.6)).requests < 4 + 1


def test_of_a_known_engine_the_kv_cache_may_hold_less() -> None:
    estimator = LimitEstimator(Work.DECODE, 256)
    unknown = estimator.update(EngineSample(1, 0, 0, cache_tokens=32 << 10))
    assert (unknown.requests, unknown.grows) == (32, True), "of usual requests"
    small = estimator.update(EngineSample(2, 32, 0, kv_use=0.1))
    assert small.requests == 256 + room(Work.DECODE, 256), "these are smaller"
    large = estimator.update(EngineSample(3, 32, 0, kv_use=0.4))
    assert large.requests == pytest.approx(80), "and these larger"
    for at in range(4, 10):
        full = estimator.update(EngineSample(at, 80, 3, kv_use=1.0))
    assert full.requests == 80 + 8, "a tenth may wait"
    assert under_way(full, 1.0) == 0, "and no more come from P's than end"
    assert estimator.update(EngineSample(10, 0, 0)).requests == pytest.approx(80), "its next requests may be as large"


def test_a_known_engine_that_runs_fewer_is_believed() -> None:
    """Its steps have no room for more, for example."""
    estimator = LimitEstimator(Work.PREFILL, 256)
    estimator.update(EngineSample(1, 0, 0))
    moment = EngineSample(2, 8, 100, kv_use=0.01)
    assert estimator.update(moment).requests == 512, "requests that have just come begin with the next step"
    assert estimator.update(replace(moment, at=3)).requests == 16
    assert estimator.update(EngineSample(4, 5, 0)).requests == 16


def test_an_engine_that_answers_at_once_gets_what_it_ends_soon() -> None:
    """It runs one request or none at any moment, and ends 500 a second."""
    estimator = LimitEstimator(Work.DECODE)
    for tenth in range(20):
        limit = estimator.update(EngineSample(tenth / 10, tenth % 2, 0, completed=50 * tenth, seconds=0.1 * tenth))
    assert limit.requests == pytest.approx(100)
    waits = EngineSample(2.0, 4, 20, completed=1000, seconds=2.0)
    assert estimator.update(waits).requests == pytest.approx(100), "its queue is worked off within 0.2 s"
    assert estimator.update(replace(waits, at=2.1, waiting=96)).requests == pytest.approx(100)
    assert estimator.update(replace(waits, at=2.4, waiting=96)).requests < 10, "until its answers take longer"


def test_answers_that_end_together_are_not_quick() -> None:
    estimator = LimitEstimator(Work.DECODE)
    for at in range(10):
        estimator.update(EngineSample(at, 16, 0))
    assert estimator.update(EngineSample(10.1, 16, 0, completed=16, seconds=160)).requests == 32


@pytest.mark.parametrize("most", [1, 8, 100])
def test_a_prefill_has_its_next_step_waiting(most: int) -> None:
    limits = fill(LimitEstimator(Work.PREFILL), most, 60)
    assert limits[-1].requests == most + max(1, most)


def test_one_report_with_waiting_requests_is_a_coincidence() -> None:
    estimator = LimitEstimator(Work.DECODE)
    before = fill(estimator, 100, 60)[-1].requests
    estimator.update(EngineSample(99, 100, 0))
    moment = EngineSample(100, 60, 3)
    assert estimator.update(moment).requests == before
    assert estimator.update(replace(moment, at=101)).requests == 63, "two are not"


def test_a_limit_stays_while_the_engine_is_idle() -> None:
    estimator = LimitEstimator(Work.DECODE)
    before = fill(estimator, 100, 60)[-1].requests
    for at in range(100, 130):
        limit = estimator.update(EngineSample(at, 0, 0))
    assert (limit.requests, limit.load) == (before, 0)


@pytest.mark.parametrize("runs", [0, 256])
@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0, 5.0, 10.0, 30.0])
def test_it_grows_again_when_requests_become_smaller(seconds: float, runs: int) -> None:
    estimator = LimitEstimator(Work.DECODE, runs)
    assert fill(estimator, 8, 60, seconds=seconds)[-1].requests < 8 + 3
    larger = [int(limit.requests) for limit in fill(estimator, 50, 300, seconds=seconds, begin=1000.0)]
    assert max(larger) >= 50
    assert min(larger[-20:]) >= 50


def test_what_an_engine_runs_varies_with_the_size_of_its_requests() -> None:
    """It is full at 40, and runs 44 for a moment. Its queue stays short when it runs 40 again."""
    estimator = LimitEstimator(Work.DECODE)
    assert fill(estimator, 40, 60)[-1].requests == 42
    assert int(estimator.update(EngineSample(100, 44, 0)).requests) == 46
    assert int(fill(estimator, 40, 20)[-1].requests) == 42


def test_scarce_kv_bounds_it() -> None:
    estimator = LimitEstimator(Work.DECODE)
    fill(estimator, 200, 60)
    assert estimator.update(EngineSample(100, 50, 0, kv_use=0.8)).requests == 50 / 0.8 + 5
    assert estimator.update(EngineSample(101, 50, 0, kv_use=0.2)).requests == 210


def test_requests_that_wait_for_their_kv_run() -> None:
    estimator = LimitEstimator(Work.DECODE)
    limit = estimator.update(EngineSample(1, 2, 0, deferred=3))
    assert (limit.requests, limit.load) == (10, 5)


def test_requests_that_wait_for_their_kv_for_a_moment_raise_no_limit() -> None:
    """A D that runs 8 at a time gets no more of them because the KV of three comes at the same time."""
    estimator = LimitEstimator(Work.DECODE)
    assert fill(estimator, 8, 60)[-1].requests == 10
    assert estimator.update(EngineSample(100, 7, 0, deferred=3)).requests == 10
    assert estimator.update(EngineSample(101, 8, 2)).requests < 11
    assert estimator.update(EngineSample(102, 8, 0, deferred=2)).requests < 11


def test_a_wave_of_loads_raises_no_limit() -> None:
    """Half of D's requests end within seconds, and the KV of those that replace them comes slowly."""
    estimator = LimitEstimator(Work.DECODE)
    before = fill(estimator, 64, 60)[-1].requests
    for at in (100, 100.5, 101, 101.5):
        estimator.update(EngineSample(at, 32, 0, deferred=32))
    assert estimator.update(EngineSample(102, 64, 1)).requests <= before
    assert estimator.update(EngineSample(103, 64, 1)).requests <= before


def test_while_many_wait_for_their_kv_others_run() -> None:
    """If loads take long, requests for a full engine reach it besides those that load."""
    estimator = LimitEstimator(Work.DECODE)
    limit = fill(estimator, 8, 60)[-1]
    for at in range(100, 120):
        legs = ceil(limit.requests)
        limit = estimator.update(EngineSample(at, min(8, legs - legs // 2), 0, deferred=legs // 2))
    assert 16 <= limit.requests <= 20


def test_rate_and_latency_are_measured() -> None:
    estimator = LimitEstimator(Work.PREFILL)
    for at in range(60):
        limit = estimator.update(EngineSample(at, 1, 0, completed=at * 20, seconds=at * 10))
    assert (limit.rate, limit.latency) == pytest.approx((2.0, 0.5)), "of one that runs"
    busy = estimator.update(EngineSample(60, 50, 0, completed=0, seconds=0))
    assert busy.rate == pytest.approx(20.0, rel=0.01), "after a restart, too"


def test_requests_that_end_together_do_not_raise_the_rate() -> None:
    """64 requests of 20 s begin within one second. Three of them end in a second on average, but 64 in this one."""
    estimator = LimitEstimator(Work.DECODE)
    for at in range(20):
        estimator.update(EngineSample(at, 64, 4))
    burst = estimator.update(EngineSample(20, 64, 4, completed=64, seconds=64 * 20.0))
    assert burst.rate == pytest.approx(68 / 20)


def test_a_short_first_request_does_not_raise_the_rate() -> None:
    estimator = LimitEstimator(Work.DECODE)
    for at in range(10):
        estimator.update(EngineSample(at, 64, 4))
    assert estimator.update(EngineSample(10.1, 64, 4, completed=1, seconds=0.1)).rate < 0.3


def test_the_requests_of_others_are_theirs() -> None:
    limit = EngineLimit(20, load=12)
    assert own_limit(limit, Legs(12)) == 20
    assert own_limit(limit, Legs(15, prefilling=3), ahead=3) == 23
    assert own_limit(limit, Legs(6)) == 8, "half of its part at once: both gateways see room for eight"
    assert own_limit(limit, Legs(8, prefilling=2), ahead=4) == 10, "and both have two of four at a P"
    assert own_limit(limit, Legs(1)) == 2, "one with few requests gets more, too"
    assert own_limit(EngineLimit(20, load=30), Legs(15)) == 10
    assert own_limit(EngineLimit(20, load=90), Legs(0)) == 1


def test_answers_that_nobody_reads_need_no_room() -> None:
    """What the engine has generated holds no place there, although its leg stays open."""
    limit = EngineLimit(20, load=12)
    assert own_limit(limit, Legs(112, blocked=100)) == 120
    assert own_limit(limit, Legs(62, blocked=100)) == 70, "it still runs half of those whose clients do not read"
    assert own_limit(limit, Legs(112, blocked=10)) == 30, "others have just come, and are not in the report"
    assert own_limit(limit, Legs(115, prefilling=3, blocked=100), ahead=3) == 123


def test_as_many_are_under_way_as_end_meanwhile() -> None:
    assert under_way(EngineLimit(100, load=100, rate=40.0), 0.5) == 20
    grows = EngineLimit(9, load=8, grows=True, rate=1.0)
    assert under_way(grows, 0.025) == 8, "D's limit rises soon enough by itself"
    assert under_way(grows, 1.0) == 16
    assert under_way(replace(grows, load=1), 1.0) == 4
    assert under_way(replace(grows, rate=2.0), 10.0) == 20
    assert under_way(replace(grows, was_full=True), 1.0) == 1


def endpoint(name: str, role: Role, order: Order = Order.PREFILL_FIRST) -> Endpoint:
    return Endpoint(EndpointSpec(Address(name, 1), role, order=order), warm_up_state=State.WARM)


def test_legs_are_limited_by_reports_and_settings() -> None:
    p, d = endpoint("p", Role.PREFILL), endpoint("d", Role.DECODE)
    pushed = endpoint("c", Role.DECODE, Order.CONCURRENT)
    snapshot = Snapshot.of([p, d, pushed])
    busy = EngineLimit(100, load=100, rate=40.0)
    limits = {p.name: EngineLimit(6, latency=0.5), d.name: busy, pushed.name: busy}

    def found(reports: LoadReports, **more: Any) -> list[float]:
        by_name = leg_limits(snapshot, reports, Limits(**more), lambda _: Legs(100))
        return [by_name[each.name] for each in (p, d, pushed)]

    reports = LoadReports(limits=limits)
    assert found(reports) == [6, 120, 100], "with P first, 20 of D's may be at a P"
    assert found(LoadReports(limits=limits), max_in_flight_per_decode=50, max_in_flight_per_prefill=3) == [3, 50, 50]
    assert found(LoadReports(limits=limits), max_in_flight_per_decode=500, max_in_flight_per_prefill=50) == [
        6,
        120,
        100,
    ]
    assert found(LoadReports()) == [FIRST_LIMIT] * 3, "before the first report"
    silent = LoadReports(silent=frozenset((p.name, d.name, pushed.name)))
    assert found(silent) == [UNREPORTED_LIMIT] * 3
    assert found(silent, max_in_flight_per_decode=700, max_in_flight_per_prefill=9) == [9, 700, 700]
