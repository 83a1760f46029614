"""An engine that is frozen while it has no work is ejected without requests. One with work is not checked."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Verification
from pdx_api.verification import Verdict
from pdx_api.vllm_metrics import EngineMetrics
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, EndpointEvent, HealthCheckRequest
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health import engine_scraper
from pdx_proxy.health.idle_checks import LATE_ROUNDS, IdleChecks
from pdx_proxy.health.reports import Report, Round
from pdx_proxy.verification import prober
from tests.component.conftest import MakeWorld
from tests.component.engine_process import EngineProcess
from tests.component.harness import FAST, Shape, World, eventually, spec_of
from tests.ports import free_port

PULL = Order.PREFILL_FIRST


def _state_of(world: World, name: str) -> State:
    return next(e.state for e in world.gateway.registry.snapshot.everything if e.name == name)


async def _found(world: World, verdict: Verdict) -> None:
    await eventually(lambda: world.gateway.prober.finding.verdict is verdict, what=verdict)


async def test_a_frozen_prefill_is_ejected_without_requests(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request after that is served at once. The pair is verified again when P continues."""
    monkeypatch.setattr(engine_scraper, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(prober, "PAUSE_SECONDS", 0.05)
    world = await make_world(PULL, 0, 1, gateway=False)
    async with EngineProcess(replace(FAST, order=PULL, role=Role.PREFILL, port=free_port())) as frozen:
        prefill = EndpointSpec(Address(frozen.settings.host, frozen.settings.port), Role.PREFILL)
        await world.start_gateway(
            warm=False,
            endpoints=(prefill, spec_of(world.d, PULL)),
            deadlines=Deadlines(health_check=1.0),
            verification=Verification(period_seconds=900),
        )
        await _found(world, Verdict.VERIFIED)
        await world.gateway.scraper.scrape_all()  # after the probe, so that P has no work
        frozen.stop()
        await eventually(lambda: world.gateway.registry.ejections[Cause.TIMEOUT] == 1, what="ejected")
        assert _state_of(world, prefill.name) is State.SUSPECT
        await _found(world, Verdict.UNKNOWN)
        (pair,) = world.gateway.prober.describe()["pairs"]
        assert (pair["verdict"], pair["seen"]) == ("unknown", "the prefill engine does not serve")
        assert world.gateway.prober.report()["pairs"] == {"verified": 0, "broken": 0, "unknown": 1}
        assert (await world.complete()).text == Shape().expected()
        assert (await world.outcomes(), world.report["retries"]) == ({"whole": 1}, {})
        frozen.resume()
        await eventually(lambda: _state_of(world, prefill.name) is State.WARM, what="warm")
        await _found(world, Verdict.VERIFIED)
        assert (await world.complete()).text == Shape().expected()
        assert await world.outcomes() == {"whole": 1, "split": 1}


PREFILL = Endpoint(EndpointSpec(Address("p", 1), Role.PREFILL), State.WARM, generation=1)
SNAPSHOT = Snapshot.of([PREFILL])
IDLE, RUNS, QUEUES = (EngineMetrics(running=running, waiting=waiting) for running, waiting in ((0, 0), (1, 0), (0, 1)))
SILENT = Round(60.0, SNAPSHOT, late=((PREFILL,),))


def _answer(metrics: EngineMetrics) -> Round:
    return Round(0.0, SNAPSHOT, (Report(PREFILL, metrics, 0.0),))


def _checks(legs: int, events: list[EndpointEvent], clock: Callable[[], float] = lambda: 0.0) -> IdleChecks:
    async def legs_of_workers() -> dict[str, int]:
        return {"p:1": legs}

    return IdleChecks(clock, legs_of_workers, events.append)


@pytest.mark.parametrize(
    ("metrics", "legs", "checked"),
    [(IDLE, 0, True), (IDLE, 1, False), (RUNS, 0, False), (QUEUES, 0, False), (EngineMetrics(), 0, False)],
    ids=["idle", "has a leg", "runs for others", "queues for others", "no report"],
)
async def test_only_an_engine_without_work_is_checked(metrics: EngineMetrics, legs: int, checked: bool) -> None:
    """Whatever it does under pressure: its last report shows work, however old it is, or a leg is in flight."""
    events: list[EndpointEvent] = []
    checks = _checks(legs, events)
    for scraped in (_answer(metrics), *(SILENT,) * (LATE_ROUNDS - 1)):
        await checks.update(scraped)
    assert events == [], "it may be late for a moment"
    await checks.update(SILENT)
    assert events == ([HealthCheckRequest("p:1", 1)] if checked else [])


async def test_an_answer_in_between_ends_the_rounds_without_one() -> None:
    events: list[EndpointEvent] = []
    checks = _checks(0, events)
    for scraped in (_answer(IDLE), *(SILENT,) * (LATE_ROUNDS - 1)) * LATE_ROUNDS:
        await checks.update(scraped)
    assert events == []


async def test_a_gateway_that_is_overloaded_checks_no_idle_engine() -> None:
    """The passes of its event loop take long, so a health check would fail too."""
    events: list[EndpointEvent] = []
    checks = _checks(0, events, itertools.count(step=1.0).__next__)
    for scraped in (_answer(IDLE), *(SILENT,) * (LATE_ROUNDS + 1)):
        await checks.update(scraped)
    assert events == []
