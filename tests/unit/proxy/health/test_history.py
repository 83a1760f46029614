"""The last minutes and the normal values of a gateway."""

from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.vllm_metrics import EngineMetrics, Mean
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.health.history import History, quantile, typical
from pdx_proxy.health.reports import Report
from pdx_proxy.telemetry.counters import BUCKETS, Counters, Outcome, Phase

D = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE))
P = Endpoint(EndpointSpec(Address("p", 1), Role.PREFILL))


class Gateway:
    """A worker's counters, an engine's, and the history that reads them."""

    def __init__(self) -> None:
        self.counters, self.now, self.tokens = Counters(), 0.0, Mean()
        self.history = History(0.0)

    def serve(self, requests: int, ttft: float = 0.1, tpot: float = 0.01, outcome: str = Outcome.SPLIT) -> None:
        self.counters.outcomes[outcome] += requests
        for _ in range(requests):
            self.counters.phases[Phase.FIRST_TOKEN].observe(ttft)
        self.tokens += Mean(tpot * 10 * requests, 10 * requests)

    def sample(self, seconds: float = 10.0) -> None:
        self.now += seconds
        reports = [
            Report(D, EngineMetrics(between_tokens=self.tokens), self.now),
            Report(P, EngineMetrics(between_tokens=Mean(99.0, 99.0)), self.now),
        ]
        self.history.update(self.now, self.counters.report({}), reports)

    @property
    def found(self) -> dict[str, Any]:
        return self.history.as_json(self.now, self.counters.report({}))


def test_the_last_minutes_end_now_and_hold_nothing_older() -> None:
    gateway = Gateway()
    gateway.serve(50)
    for _ in range(30):
        gateway.sample()
    gateway.counters.retries_refused = 3
    gateway.serve(20, outcome=Outcome.UNAVAILABLE, ttft=4.0)
    found = gateway.found
    assert found["seconds"] == 120.0
    assert found["outcomes"] == {"unavailable": 20}
    assert found["retriesRefused"] == 3
    assert found["ttft"] == {"count": 20, "median": pytest.approx(3.75), "p90": pytest.approx(4.75)}, (
        "between 2.5 s and 5 s"
    )


def test_a_gateway_that_has_just_started_reports_all_it_has_seen() -> None:
    gateway = Gateway()
    gateway.tokens = Mean(10_000.0, 1_000_000.0)  # the engine served before the gateway did
    gateway.sample(1.0)
    gateway.serve(12, tpot=0.2)
    gateway.sample(5.0)
    assert gateway.found["outcomes"] == {"split": 12}
    assert gateway.found["tpot"] == {D.name: pytest.approx(0.2)}, "of engines that decode"
    assert gateway.found["normal"] == {"ttft": None, "tpot": None}


def test_a_fault_of_forty_minutes_does_not_become_normal() -> None:
    gateway = Gateway()
    for minute in range(60):
        slow = minute >= 20
        for _ in range(6):
            gateway.serve(5, ttft=25.0 if slow else 0.1, tpot=0.2 if slow else 0.001)
            gateway.sample()
    normal = gateway.found["normal"]
    assert normal["ttft"] <= 0.1
    assert normal["tpot"] == pytest.approx(0.001)
    assert gateway.found["tpot"][D.name] == pytest.approx(0.2)
    assert gateway.found["ttft"]["median"] > 20


def test_an_engine_that_restarts_counts_from_its_start() -> None:
    gateway = Gateway()
    gateway.serve(100, tpot=0.2)
    gateway.sample()
    gateway.tokens = Mean()
    gateway.serve(2, tpot=0.01)
    gateway.sample()
    assert gateway.history.as_json(gateway.now, gateway.counters.report({}))["tpot"] == {D.name: pytest.approx(0.01)}


def test_an_engine_that_restarts_and_serves_much_has_no_negative_times() -> None:
    gateway = Gateway()
    gateway.sample()
    gateway.serve(2, tpot=0.2)
    gateway.sample()
    gateway.tokens = Mean()
    gateway.serve(10, tpot=0.01)
    gateway.sample()
    assert gateway.found["tpot"] == {D.name: pytest.approx(0.01)}


def test_engines_that_are_gone_are_forgotten() -> None:
    history, counters = History(0.0), Counters()
    for number in range(100):
        engine = Endpoint(EndpointSpec(Address(f"d{number}", 1), Role.DECODE))
        report = Report(engine, EngineMetrics(between_tokens=Mean(1.0, 100.0)), number * 10.0)
        history.update(number * 10.0, counters.report({}), [report])
    assert len(history._first) <= 14, "those of the last two minutes"


def test_too_few_durations_have_no_median() -> None:
    assert quantile([9, *[0] * len(BUCKETS)]) is None
    assert quantile([10, *[0] * len(BUCKETS)]) == pytest.approx(BUCKETS[0] / 2)
    assert quantile([*[0] * len(BUCKETS), 10]) == BUCKETS[-1], "beyond the last bucket, at least its bound"
    assert typical([]) is None
    assert typical([None, 3.0, 1.0]) == 1.0


def test_waits_breaks_and_restarts_of_the_last_minutes() -> None:
    gateway = Gateway()
    gateway.sample()
    for _ in range(12):
        gateway.counters.phases[Phase.HANDOFF].observe(4.0)
    gateway.counters.broke(D.name)
    gateway.history.update(
        20.0, gateway.counters.report({}), [Report(replace(D, generation=5, resumes=2), EngineMetrics(), 20.0)]
    )
    found = gateway.found
    assert found["phases"] == {
        "to_prefill": {"count": 0, "median": None, "p90": None},
        "prefill": {"count": 0, "median": None, "p90": None},
        "handoff": {"count": 12, "median": pytest.approx(3.75), "p90": pytest.approx(4.75)},
    }
    assert found["broken"] == {D.name: 1}
    assert found["restarts"] == {D.name: 3}
