"""The engines' metrics -> their load and what limits them, and which load reports are published."""

import pytest

from pdx_api.names import Role
from pdx_api.vllm_metrics import EngineMetrics, Mean, Waiting
from pdx_proxy.balancing.engine_limits import EngineLimit, EngineSample
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.engine_loads import EngineLoads, must_publish
from pdx_proxy.health.reports import Report, Round

METRICS = EngineMetrics(
    running=5,
    waiting=7,
    waiting_by_reason=Waiting(4, 3),
    kv_use=0.25,
    generated_tokens=100,
    latency=Mean(80.5, 40),
    first_token=Mean(1, 10),
    between_tokens=Mean(9, 60),
)
ENGINE = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE), State.WARM)
IDLE, BUSY, FULL = LoadReport(0, 0, 0.0), LoadReport(3, 0, 0.2), LoadReport(3, 9, 0.9)


def test_a_load_counts_tokens_rather_than_outputs() -> None:
    assert LoadReport.of(METRICS) == LoadReport(5, 7, 0.25, 0, None, 9, 90, 2.5)


@pytest.mark.parametrize("lacking", ["running", "waiting", "kv_use"])
def test_an_incomplete_page_has_no_load(lacking: str) -> None:
    complete = {"running": 1.0, "waiting": 0.0, "kv_use": 0.5}
    assert LoadReport.of(EngineMetrics(**complete)) == LoadReport(1, 0, 0.5)  # type: ignore[arg-type]
    assert LoadReport.of(EngineMetrics(**complete | {lacking: None})) is None  # type: ignore[arg-type]


def test_a_sample_separates_requests_that_wait_for_their_kv() -> None:
    assert EngineSample.of(METRICS, 9.0) == EngineSample(9.0, 5, 4, 3, 0.25, 40, 80.5)
    older = EngineMetrics(running=5, waiting=7, kv_use=0.25)
    assert EngineSample.of(older, 9.0) == EngineSample(9.0, 5, 7, 0, 0.25), "of an older vLLM"


def test_an_engine_whose_report_is_too_old_is_silent() -> None:
    loads, snapshot = EngineLoads(), Snapshot.of([ENGINE])
    report = Report(ENGINE, METRICS, 1.0)
    assert loads.update(Round(1.0, snapshot, (report,), (report,)))
    assert (set(loads.reports.engines), set(loads.reports.limits)) == ({ENGINE.name}, {ENGINE.name})
    assert loads.update(Round(9.0, snapshot))
    assert loads.reports == LoadReports(silent=frozenset({ENGINE.name}))
    assert loads.update(Round(9.0, Snapshot()))
    assert loads.reports == LoadReports()


@pytest.mark.parametrize("answers", [True, False])
def test_a_warm_engine_is_read_at_once(answers: bool) -> None:
    loads, snapshot = EngineLoads(), Snapshot.of([ENGINE])
    assert loads.lacks(snapshot.everything)
    report = (Report(ENGINE, METRICS, 1.0),) if answers else ()
    loads.update(Round(1.0, snapshot, report, report))
    assert not loads.lacks(snapshot.everything), "once"


def test_a_known_engine_has_its_limit_after_its_first_report() -> None:
    known = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE, sequences=64, ranks=2), State.WARM)
    loads = EngineLoads()
    report = (Report(known, EngineMetrics(running=0, waiting=0, kv_use=0.0, cache_tokens=1 << 20), 1.0),)
    loads.update(Round(1.0, Snapshot.of([known]), report, report))
    assert loads.reports.limits[known.name].requests == pytest.approx(128 * 1.05)


CHANGES = [
    ({}, {}, False),
    ({}, {"a": IDLE}, True),
    ({"a": IDLE}, {"a": IDLE}, False),
    ({"a": IDLE}, {"a": BUSY}, True),
    ({"a": BUSY}, {"a": BUSY}, True),
    ({"a": BUSY}, {"a": FULL}, True),
    ({"a": BUSY}, {"a": IDLE}, True),
    ({"a": IDLE}, {}, True),
]


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES)
def test_which_reports_are_published(old: dict[str, LoadReport], new: dict[str, LoadReport], expected: bool) -> None:
    assert must_publish(LoadReports(old), LoadReports(new)) is expected


def test_limits_and_silence_are_published() -> None:
    idle = LoadReports({"a": IDLE}, {"a": EngineLimit(5)})
    assert must_publish(idle, LoadReports({"a": IDLE}, {"a": EngineLimit(9)}))
    assert must_publish(LoadReports(), LoadReports(silent=frozenset("a")))
    assert not must_publish(idle, LoadReports({"a": IDLE}, {"a": EngineLimit(5)}))
