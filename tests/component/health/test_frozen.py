"""An engine that is frozen while it has no work is ejected without requests. One with work is not checked."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from pdx_api.names import Order, Role
from pdx_api.verification import Verdict
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec, Settings, Verification
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, EndpointEvent, HealthCheckRequest
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.upstreams import create_engines
from pdx_proxy.health import load_poller
from pdx_proxy.health.load_poller import LATE_ROUNDS, LoadPoller
from pdx_proxy.http.upstream.failures import ConnectFailure, ConnectTimeout, DeadlineExceeded, EngineFailure
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
    monkeypatch.setattr(load_poller, "PAUSE_SECONDS", 0.05)
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
        await world.gateway.load_poller.poll_all()  # after the probe, so that P has no work
        frozen.stop()
        await eventually(lambda: world.gateway.registry.ejections[Cause.TIMEOUT] == 1, what="ejected")
        assert _state_of(world, prefill.name) is State.SUSPECT
        await _found(world, Verdict.UNKNOWN)
        (pair,) = world.gateway.prober.describe()["pairs"]
        assert (pair["verdict"], pair["seen"]) == ("unknown", "P does not serve")
        assert world.gateway.prober.report()["pairs"] == {"verified": 0, "broken": 0, "unknown": 1}
        assert (await world.complete()).text == Shape().expected()
        assert (await world.outcomes(), world.report["retries"]) == ({"whole": 1}, {})
        frozen.resume()
        await eventually(lambda: _state_of(world, prefill.name) is State.WARM, what="warm")
        await _found(world, Verdict.VERIFIED)
        assert (await world.complete()).text == Shape().expected()
        assert await world.outcomes() == {"whole": 1, "split": 1}


def _page(running: int, waiting: int) -> bytes:
    return f"""
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
""".encode()


LATE, UNREACHED, REFUSED = DeadlineExceeded("p", "late"), ConnectTimeout("p", "late"), ConnectFailure("p", "refused")


@dataclass
class Silent:
    """A poller of one engine that has answered once, and does not any more."""

    poller: LoadPoller
    events: list[EndpointEvent]
    answers: list[bytes]
    """Pages with which it answers next."""
    late: float = 0.0
    """How far the clock is ahead."""


async def _silent(monkeypatch: pytest.MonkeyPatch, page: bytes, legs: int, failure: EngineFailure) -> Silent:
    answers: list[bytes] = [page]

    async def fetch(*_: object) -> bytes:
        if answers:
            return answers.pop()
        raise failure

    async def legs_of_workers() -> dict[str, int]:
        return {"p:1": legs}

    monkeypatch.setattr(load_poller, "fetch", fetch)
    endpoint = Endpoint(EndpointSpec(Address("p", 1), Role.PREFILL), State.WARM, generation=1)
    events: list[EndpointEvent] = []
    engines = create_engines(Settings(), lambda _: None)
    clock = engines.clock
    poller = LoadPoller(engines, lambda: Snapshot.of([endpoint]), lambda: None, legs_of_workers, events.append)
    silent = Silent(poller, events, answers)
    engines.clock = lambda: clock() + silent.late
    await poller.poll_all()
    assert not events, "it answers"
    return silent


@pytest.mark.parametrize(
    ("page", "legs", "failure", "checked"),
    [
        (_page(0, 0), 0, LATE, True),
        (_page(0, 0), 0, UNREACHED, True),
        (_page(0, 0), 0, REFUSED, False),
        (_page(0, 0), 1, LATE, False),
        (_page(1, 0), 0, LATE, False),
        (_page(0, 1), 0, LATE, False),
        (b"", 0, LATE, False),
    ],
    ids=["idle", "idle, no connection", "refuses", "has a leg", "runs for others", "queues for others", "no report"],
)
async def test_only_an_engine_without_work_is_checked(
    page: bytes, legs: int, failure: EngineFailure, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does under pressure: its last report shows work, however old it is, or a leg is in flight."""
    silent = await _silent(monkeypatch, page, legs, failure)
    silent.late = 60.0
    for _ in range(LATE_ROUNDS - 1):
        await silent.poller.poll_all()
    assert silent.events == [], "it may be late for a moment"
    await silent.poller.poll_all()
    assert silent.events == ([HealthCheckRequest("p:1", 1)] if checked else [])


async def test_an_answer_in_between_ends_the_rounds_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = await _silent(monkeypatch, _page(0, 0), 0, LATE)
    for _ in range(LATE_ROUNDS):
        for _ in range(LATE_ROUNDS - 1):
            await silent.poller.poll_all()
        silent.answers.append(_page(0, 0))
        await silent.poller.poll_all()
    assert silent.events == []


async def test_a_gateway_that_is_overloaded_checks_no_idle_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass of its event loop takes long, so a health check would fail too."""
    silent = await _silent(monkeypatch, _page(0, 0), 0, LATE)
    sleep = asyncio.sleep

    async def slow_pass(seconds: float) -> None:
        silent.late += 0.1
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", slow_pass)
    for _ in range(LATE_ROUNDS):
        await silent.poller.poll_all()
    assert silent.events == []
