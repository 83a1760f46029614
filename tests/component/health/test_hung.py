"""What ejects an engine as hung, and what does not: health checks and long queues; and how a warm-up goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec, Settings
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, EndpointEvent, HealthCheckRequest, Suspect
from pdx_proxy.engines.upstreams import Engines, create_engines
from pdx_proxy.health import health_checks, warm_up
from pdx_proxy.health.endpoint_manager import EndpointManager
from pdx_proxy.health.health_checks import HealthChecks, conclude
from pdx_proxy.health.registry import EndpointRegistry
from pdx_proxy.http.upstream.failures import ConnectFailure, ConnectTimeout, DeadlineExceeded, EngineFailure
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Shape, eventually
from tests.component.servers import Handle, serving

PULL = Order.PREFILL_FIRST


@asynccontextmanager
async def listening(handle: Handle) -> AsyncIterator[Address]:
    """The address of a server of one test."""
    async with serving(handle) as port:
        yield Address("127.0.0.1", port)


def engine_at(address: Address) -> Endpoint:
    return Endpoint(EndpointSpec(address, Role.DECODE), State.WARM, generation=1)


async def _check(address: Address, seconds: float) -> list[EndpointEvent]:
    """The events of one health check."""
    events: list[EndpointEvent] = []
    engines = create_engines(Settings(deadlines=Deadlines(health_check=seconds)), lambda _: None)
    checks = HealthChecks(engines, events.append)
    checks.start(engine_at(address))
    checks.start(engine_at(address))  # one runs already
    await asyncio.gather(*checks._tasks.values())
    engines.pool.close()
    return events


async def test_an_engine_that_answers_no_health_check_is_hung() -> None:
    connections = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()

    async with listening(silent) as address:
        events = await _check(address, 0.05)
    found = [(event.name, event.cause) for event in events if isinstance(event, Suspect)]
    assert found == [(str(address), Cause.TIMEOUT)]
    assert connections >= 2, "each check has a connection of its own"


@pytest.mark.parametrize(("status", "cause"), [(200, None), (404, None), (503, Cause.TIMEOUT)])
async def test_an_answer_shows_that_it_lives_unless_it_reports_its_death(status: int, cause: Cause | None) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode())

    async with listening(answer) as address:
        events = await _check(address, 20.0)
    assert [event.cause for event in events if isinstance(event, Suspect)] == ([cause] if cause else [])


async def test_an_engine_that_refuses_the_check_is_lost() -> None:
    async with listening(lambda _reader, _writer: asyncio.sleep(0)) as address:
        pass
    events = await _check(address, 20.0)
    assert [event.cause for event in events if isinstance(event, Suspect)] == [Cause.LOST]


CONCLUSIONS: list[tuple[EngineFailure, int, Cause | None]] = [
    (DeadlineExceeded("d", "late"), 0, None),
    (DeadlineExceeded("d", "late"), 1, None),
    (DeadlineExceeded("d", "late"), 2, Cause.TIMEOUT),
    (ConnectTimeout("d", "no connection"), 1, None),
    (ConnectTimeout("d", "no connection"), 2, Cause.TIMEOUT),
    (ConnectFailure("d", "refused"), 0, Cause.LOST),
]


@pytest.mark.parametrize(("failure", "failed", "cause"), CONCLUSIONS)
def test_conclusions(failure: EngineFailure, failed: int, cause: Cause | None) -> None:
    suspect = conclude(engine_at(Address("d", 1)), failure, failed)
    assert (suspect and suspect.cause) == cause


async def test_a_deadline_of_a_request_ejects_nothing(
    order: Order, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D is slow to one request and answers its health check. It is the only D, and it stays in use."""
    checked: list[str] = []

    async def answers_health(_: Engines, endpoint: Endpoint, __: float) -> None:
        checked.append(endpoint.name)

    monkeypatch.setattr(health_checks, "answers_health", answers_health)
    world = await make_world(order, deadlines=SHORT, sim={"lease_seconds": 0.5})
    world.allowed.stranded = world.allowed.expired = True
    world.fault(world.d, FaultKind.HANG_BEFORE_HEAD)
    shape = Shape(stream=True)
    assert (await world.complete(shape)).text == shape.expected()
    await eventually(lambda: world.endpoint(world.d).name in checked, what="it is checked")
    world.d.faults.clear()
    assert (await world.complete(shape)).text == shape.expected()
    assert all(world.endpoint(engine).generation == 1 for engine in world.engines)
    assert not any((await world.state())["ejections"].values())


async def test_an_engine_that_hangs_in_a_worker_process_is_ejected(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request waits in a worker, and the control process checks the engine."""

    async def answers_health(_: Engines, endpoint: Endpoint, __: float) -> None:
        raise DeadlineExceeded(endpoint.name, "no answer from /health")

    monkeypatch.setattr(health_checks, "answers_health", answers_health)
    world = await make_world(PULL, 1, 2, deadlines=SHORT, workers=2, sim={"lease_seconds": 5.0})
    world.allowed.expired = True
    workers, shape = world.gateway._workers, Shape(stream=True)
    assert workers is not None
    await eventually(lambda: workers.serving == 2, 60.0, "both workers serve")
    world.fault(world.d, FaultKind.HANG_BEFORE_HEAD)
    while not world.d.counts.faults["hang_before_head"]:
        assert (await world.complete(shape)).text == shape.expected()
    await eventually(lambda: world.gateway.registry.ejections[Cause.TIMEOUT] == 1, what="it is ejected")
    await world.warm()


async def test_streams_wait_in_the_queue_of_an_engine(make_world: MakeWorld) -> None:
    """One sequence at a time at the only D: the last stream waits far longer than `handoff`, and all are answered."""
    deadlines = replace(SHORT, prefill_seconds=30.0, handoff_seconds=0.1, first_event_seconds=30.0)
    world = await make_world(PULL, d={"max_running": 1, "decode_token_seconds": 0.02}, deadlines=deadlines)
    shape = Shape(stream=True)
    replies = await asyncio.gather(*(world.complete(shape, prompt=f"{n} " * 50, tokens=10) for n in range(6)))
    assert [reply.text for reply in replies] == [shape.expected(f"{n} " * 50, 10) for n in range(6)]
    assert (await world.outcomes()) == {"split": 6}
    assert not any((await world.state())["ejections"].values())


async def test_a_hung_engine_lets_go_of_requests_that_wait(make_world: MakeWorld) -> None:
    """Without a stream they would wait for `total`."""
    world = await make_world(PULL, 1, 2, sim={"lease_seconds": 0.5})
    world.allowed.expired = True
    for engine in world.decode:
        world.fault(engine, FaultKind.HANG_BEFORE_HEAD)
    request = asyncio.create_task(world.complete())
    await eventually(lambda: any(engine.counts.faults["hang_before_head"] for engine in world.decode))
    hung = next(engine for engine in world.decode if engine.counts.faults["hang_before_head"])
    for engine in world.decode:
        engine.faults.clear()
    world.gateway.endpoint_manager.on_event(Suspect(world.endpoint(hung).name, 1, "no progress", Cause.STALLED))
    assert (await request).text == Shape().expected()
    assert world.report["retries"] == {"lost": 1}
    await world.warm()


@pytest.mark.parametrize("push", [Order.DECODE_FIRST, Order.CONCURRENT])
async def test_a_decode_with_a_long_queue_gets_whole_requests(push: Order, make_world: MakeWorld) -> None:
    world = await make_world(push)
    world.gateway.endpoint_manager.set_long_queue(world.endpoint(world.d), True)
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"whole": 1}
    assert world.report["localPrefills"]["long_queue"] == world.report["notSplit"]["long_queue"] == 1
    world.gateway.endpoint_manager.set_long_queue(world.endpoint(world.d), False)
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"whole": 1, "split": 1}


@pytest.mark.parametrize("supported", ["/v1/completions", "/pooling", "/v1/embeddings"])
async def test_an_engine_with_a_pooling_model_is_warmed_up(supported: str) -> None:
    paths: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        paths.append(head.split()[1].decode())
        status = "200 OK" if paths[-1] == supported else "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        await writer.drain()
        writer.close()

    async with listening(answer) as address, _warming(address) as (registry, name):
        await eventually(lambda: registry.endpoint(name).warm)
    tried, pages = paths[:-2], paths[-2:]
    assert tried == ["/v1/completions", "/pooling", "/v1/embeddings"][: len(tried)]
    assert (tried[-1], pages) == (supported, ["/version", "/v1/models"])


@asynccontextmanager
async def _warming(address: Address) -> AsyncIterator[tuple[EndpointRegistry, str]]:
    """A warm-up of one engine."""
    engines = create_engines(Settings(), lambda _: None)
    registry = EndpointRegistry([EndpointSpec(address, Role.DECODE)], engines.clock)
    manager = EndpointManager(engines, registry, lambda: None)
    manager.start()
    try:
        yield registry, str(address)
    finally:
        await manager.stop()
        engines.pool.close()


async def test_an_error_of_the_gateway_does_not_end_a_warm_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def serve_any(*_: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("a defect")

    monkeypatch.setattr(warm_up, "serve_any", serve_any)
    async with _warming(Address("d", 1)) as (registry, name):
        await eventually(lambda: registry.endpoint(name).warm)
    assert tries == 2
    assert "The warm-up of d:1 failed." in caplog.text


def test_a_check_is_requested_of_the_present_start_only() -> None:
    registry = EndpointRegistry([EndpointSpec(Address("d", 1), Role.DECODE)], clock=lambda: 0.0)
    registry.warm_up_succeeded(registry.endpoint("d:1"))
    assert registry.on_event(HealthCheckRequest("d:1", 1)).check == registry.endpoint("d:1")
    assert registry.on_event(HealthCheckRequest("d:1", 0)).check is None
