"""Steps that fail inside the gateway end neither a worker nor the control side."""

import asyncio
import logging
from typing import Any, NoReturn

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.engine_limits import EngineLimit
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.config.settings import Address, EndpointSpec, Settings
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.reports import Round
from pdx_proxy.process.admin import describe
from pdx_proxy.process.control import Control
from pdx_proxy.process.exposition import render
from pdx_proxy.process.guard import Guard
from pdx_proxy.process.worker import Worker
from pdx_proxy.process.workers import LocalWorkers

D = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE), State.WARM, generation=1)
SNAPSHOT = Snapshot.of([D])
ERRORS = [OverflowError("cannot convert float infinity to integer"), KeyError("d"), RecursionError()]


def fail(error: Exception) -> Any:
    def raises(*_: object) -> NoReturn:
        raise error

    return raises


def reports(requests: float) -> LoadReports:
    return LoadReports({D.name: LoadReport(1, 0, 0.1)}, {D.name: EngineLimit(requests)})


def test_a_failing_step_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard()
    for error in (*ERRORS, None, ERRORS[0]):
        with guard.step("A step"):
            if error is not None:
                raise error
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "A step failed; the gateway goes on without it: OverflowError('cannot convert" in caplog.text
    assert "\n" not in caplog.records[0].getMessage()


def test_a_cancelled_step_ends() -> None:
    with pytest.raises(asyncio.CancelledError), Guard().step("A step"):
        raise asyncio.CancelledError


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("numbers", ["inf", "nan", "-inf", "1e308"])
async def test_load_reports_that_fail_leave_a_worker_with_its_limits(
    numbers: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(Settings(), lambda _: None)
    worker.apply(SNAPSHOT)
    worker.apply_load(reports(7.0))
    before = dict(worker._engines.load.limits)
    assert before == {D.name: 7.0}
    worker.apply_load(reports(float(numbers)))
    worker.apply(SNAPSHOT)
    worker.report()
    decodes = type(worker._serving.chooser.decodes)
    for name in ("apply_load", "apply", "report"):
        monkeypatch.setattr(decodes, name, fail(error))
    worker.apply_load(reports(9.0))
    worker.apply(SNAPSHOT)
    assert worker.report()["decode"] == {"itl": {}, "measured": {}, "batches": {}, "limited": {}}


@pytest.mark.parametrize("error", ERRORS)
async def test_no_consumer_of_a_round_stops_another_one(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control(Settings())
    control._workers = LocalWorkers(Worker(Settings(), lambda _: None), Address("h", 1))
    owners = (control.loads, control._stalls, control._queues, control._idle_checks)
    for owner in owners:
        monkeypatch.setattr(type(owner), "update", fail(error))
    shares: list[Round] = []
    monkeypatch.setattr(type(control.transfer_share), "update", lambda _, scraped, __: shares.append(scraped))
    scraped = Round(1.0, SNAPSHOT, is_sample=True)
    await control._consume(scraped)
    assert shares == [scraped]


@pytest.mark.parametrize("error", ERRORS)
async def test_the_report_of_the_gateway_goes_on(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control(Settings())
    control._workers = LocalWorkers(Worker(Settings(), lambda _: None), Address("h", 1))
    control.loads.reports = reports(float("inf"))
    control._leg_limits = {D.name: 7.0}
    monkeypatch.setattr(type(control.registry), "snapshot", SNAPSHOT)
    monkeypatch.setattr(type(control.transfer_share), "as_json", fail(error))
    report = await control._report()
    assert report["legLimits"] == {D.name: 7.0}
    assert b"pdx_leg_limit" in render(report, [D])
    assert describe(Settings(), SNAPSHOT, report, 1)["arrivals"] == {}


@pytest.mark.parametrize("error", ERRORS)
async def test_a_snapshot_that_cannot_be_published_stops_no_warm_up(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = Control(Settings())
    control._workers = LocalWorkers(Worker(Settings(), lambda _: None), Address("h", 1))
    monkeypatch.setattr(LocalWorkers, "apply", fail(error))
    started: list[str] = []
    monkeypatch.setattr(type(control.endpoint_manager._warm_ups), "start", lambda _, names, __: started.extend(names))
    control.endpoint_manager.update([EndpointSpec(Address("new", 1), Role.DECODE)])
    assert started == ["new:1"]
