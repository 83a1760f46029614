"""Decode engines that may be able to run more get nearly as many requests as each other."""

from dataclasses import replace
from math import ceil

import pytest

from pdx_api.names import Order, Role
from pdx_proxy.balancing.engine_limits import EngineLimit, EngineSample, Legs, LimitEstimator, Work
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.config.settings import Address, EndpointSpec, Limits
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot

ALL = Legs(1000)
"""This gateway has all requests of an engine."""


def decode(name: str, revision: str = "r", order: Order = Order.CONCURRENT) -> Endpoint:
    spec = EndpointSpec(Address(name, 1), Role.DECODE, order=order, revision=revision)
    return Endpoint(spec, warm_up_state=State.WARM)


def limits_of(
    found: dict[Endpoint, EngineLimit], legs: dict[str, Legs] | None = None, batches: dict[str, float] | None = None
) -> list[float]:
    reports = LoadReports(limits={each.name: limit for each, limit in found.items()})
    snapshot = Snapshot.of(list(found))
    by_name = leg_limits(snapshot, reports, Limits(), lambda each: (legs or {}).get(each.name, ALL), batches or {})
    return [by_name[each.name] for each in found]


A, B, C = decode("a"), decode("b"), decode("c")


def grows(requests: float, load: float, queued: float = 0.0) -> EngineLimit:
    return EngineLimit(requests, load=load, grows=True, queued=queued)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (grows(20, 7, 3), grows(6, 5), [7, 6]),
        (grows(20, 12), grows(6, 5), [15, 6]),
        (grows(20, 7), grows(40, 7), [20, 25]),
        (grows(8, 4), grows(8, 4), [8, 8]),
    ],
    ids=["one more", "a quarter more than it runs", "a quarter more", "equal"],
)
def test_decodes_that_may_run_more_get_nearly_as_many_as_each_other(
    first: EngineLimit, second: EngineLimit, expected: list[float]
) -> None:
    """Otherwise the first one that is read would get all that wait."""
    full = EngineLimit(4, load=4)
    assert limits_of({A: first, B: second, C: full}) == [*expected, 4]


def test_one_that_runs_all_it_can_bounds_no_other() -> None:
    assert limits_of({A: grows(20, 7), B: EngineLimit(6, load=6)}) == [20, 6]
    assert limits_of({A: EngineLimit(20, load=7), B: grows(6, 5)}) == [20, 6]


def test_revisions_bound_only_themselves() -> None:
    assert limits_of({A: grows(20, 7), decode("d", "s"): grows(6, 5)}) == [20, 6]


def test_those_at_a_prefill_engine_count() -> None:
    """Its prompts take long, so each D may have twice its load there."""
    p = Endpoint(EndpointSpec(Address("p", 1), Role.PREFILL, revision="r"), warm_up_state=State.WARM)
    d, e = (decode(name, order=Order.PREFILL_FIRST) for name in "de")
    slow = EngineLimit(9, latency=1.0)
    assert limits_of({p: slow, d: grows(8, 7, 3), e: grows(4, 2)})[1:] == [10, 8]


def test_an_objective_or_slow_clients_of_one_bound_no_other() -> None:
    same = {A: grows(40, 20), B: grows(40, 20)}
    assert limits_of(same, batches={A.name: 3.0}) == [3, 40]
    legs = {A.name: Legs(4), B.name: Legs(30, blocked=26)}
    assert limits_of({A: grows(8, 4), B: grows(8, 4)}, legs) == [8, 34]


def test_several_gateways_do_not_bound_each_other() -> None:
    legs = {A.name: Legs(0), B.name: Legs(10)}
    assert limits_of({A: grows(20, 10), B: grows(20, 10)}, legs) == [1, 20]


def test_a_decode_that_stays_idle_holds_no_other_back() -> None:
    """It refuses requests for a while, or has only just started. The other one has run more already, or none yet."""
    for begins, readings in ((4.0, 40), (100.0, 10)):
        estimator, runs = LimitEstimator(Work.DECODE), begins
        idle = LimitEstimator(Work.DECODE).update(EngineSample(0.0, 0.0, 0.0))
        before = runs
        for number in range(readings):
            # A tenth of those that it ran have just ended.
            limit = estimator.update(EngineSample(float(number), float(ceil(0.9 * runs)), 0.0))
            found = limits_of({A: replace(idle, requests=4.0), B: limit})
            assert found[1] >= before
            before = runs = found[1]
        assert runs > max(100.0, 2 * begins)
