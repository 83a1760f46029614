"""A gateway that is out of ports, files or memory blames no engine, and abandoned answers leave no ports behind."""

import asyncio
import errno
import itertools
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvloop

from pdx_api.names import Order
from pdx_proxy.config.settings import Address
from pdx_proxy.engines.probe import answers_health
from pdx_proxy.health.health_checks import FAILED_CHECKS, conclude
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.http.upstream.failures import ConnectFailure, ConnectTimeout
from tests.component.conftest import MakeWorld
from tests.component.harness import ORDERS, Shape, World, eventually

_OUT_OF_PORTS = "The gateway is out of local ports"


@contextmanager
def _no_files() -> Iterator[None]:
    """Let this process open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _disconnect(world: World) -> None:
    """Close the worker's idle connections to engines, so that the next request needs new ones."""
    await eventually(lambda: world.settled)
    world.pool.close()
    await asyncio.sleep(0.05)


def _check_nothing_ejected(world: World) -> None:
    registry = world.gateway.registry
    assert {e.state.value for e in registry.snapshot.everything} == {"Warm"}
    assert not any(registry.ejections.values()), registry.ejections


async def test_without_files_clients_get_503_and_no_engine_is_ejected(
    order: Order, make_world: MakeWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(order, prefill=2, decode=2)
    assert (await world.complete()).status == 200  # the client's connection stays open
    await _disconnect(world)
    before = [engine.counts.requests.total() for engine in world.engines]
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING), _no_files():
        # Each request needs a new connection, and none that is closed leaves a file for it.
        patch.setattr(ConnectionPool, "take", lambda *_: None)
        replies = [await world.complete() for _ in range(7)]
        for endpoint in world.gateway.registry.snapshot.everything:
            for _ in range(FAILED_CHECKS):
                with pytest.raises(ConnectFailure) as failed:
                    await answers_health(world.worker._engines, endpoint, 1.0)
            assert conclude(endpoint, failed.value, FAILED_CHECKS) is None
        await asyncio.sleep(1.5)  # the metrics are read meanwhile
    assert {(reply.status, reply.headers["retry-after"]) for reply in replies} == {(503, "1")}
    assert "out of ports, files or memory" in replies[0].error["message"]
    assert [engine.counts.requests.total() for engine in world.engines] == before, "no attempt elsewhere"
    assert sum(_OUT_OF_PORTS in record.getMessage() for record in caplog.records) <= 2, "one of each pool"
    _check_nothing_ejected(world)
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"exhausted": 7, "split": 2}
    assert world.report["retries"] == {"local": 7}


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)),
        OSError("Multiple exceptions: [Errno 99] Connect call failed ('::1', 1), [Errno 99] Connect call failed"),
        MemoryError(),
    ],
    ids=lambda error: str(getattr(error, "errno", None) or type(error).__name__),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_other_limits_of_the_gateway_count_against_no_engine(
    error: Exception, stream: bool, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(Order.DECODE_FIRST, decode=2)
    await _disconnect(world)

    async def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(world.pool, "_open_to", fail)
        replies = [await world.complete(Shape(stream=stream)) for _ in range(6)]
    assert {reply.status for reply in replies} == {503}
    _check_nothing_ejected(world)
    assert (await world.complete()).status == 200
    assert (await world.outcomes())["exhausted"] == 6


async def test_a_warm_up_without_files_ejects_no_other_engine(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A P that is warmed up needs a D. That the gateway cannot connect to the D shows nothing about it."""
    world = await make_world(Order.PREFILL_FIRST)
    await _disconnect(world)
    prefill = world.endpoint(world.p)
    monkeypatch.setattr(world.gateway._engines.pool, "take", lambda *_: None)  # each request needs a new connection
    with _no_files():
        with pytest.raises(ConnectFailure) as failed:
            await world.gateway.endpoint_manager._warm_ups._warm_pair(prefill, world.endpoint(world.d))
        assert failed.value.local
    _check_nothing_ejected(world)


async def test_an_error_of_memory_inside_is_no_error_of_the_gateway(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(Order.PREFILL_FIRST)

    async def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(world.worker._gateway._attempts, "run", fail)
    reply = await world.complete()
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert await world.outcomes() == {"exhausted": 1}


@pytest.mark.parametrize("order", ORDERS)
def test_ports(order: Order) -> None:
    """In a network of its own, with few ports."""
    unshare = ("unshare", "--map-root-user", "--net")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system permits no network namespaces")
    program = [*unshare, sys.executable, "-m", "tests.component.health.few_ports", order]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class _Engine:
    """Accepts connections, and keeps how each of them ended."""

    def __init__(self) -> None:
        self.ends: list[Exception | None] = []
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        server = await asyncio.get_running_loop().create_server(lambda: _Ends(self), "127.0.0.1", 0)
        async with server:
            yield Address(*server.sockets[0].getsockname())


class _Ends(asyncio.Protocol):
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.ends.append(exc)
        self._engine.ended.set()


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@LOOPS
def test_a_connection_that_nobody_awaits_any_more_is_reset(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Its port would stay in TIME_WAIT if the gateway closed it."""
    with asyncio.Runner(loop_factory=loop) as runner:
        ends = runner.run(_leave_at_each_step())
    assert len(ends) >= 2
    assert all(isinstance(end, ConnectionResetError) for end in ends), ends


async def _leave_at_each_step() -> list[Exception | None]:
    """Cancel a connect at each step of it; return how the connections ended for the engine."""
    engine = _Engine()
    async with engine.listening() as address:
        pool = ConnectionPool(idle_seconds=1, connect_seconds=1)
        for turns in itertools.count():
            engine.ended.clear()
            connecting = asyncio.create_task(pool.connect(address, "d"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if connecting.done():
                connecting.result().abort(ConnectionResetError())
                return engine.ends
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            if turns:  # else it did not begin
                async with asyncio.timeout(5):
                    await engine.ended.wait()
    raise AssertionError


@LOOPS
def test_a_connection_that_comes_too_late_is_reset(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The gateway was too busy to see that it is open."""
    with asyncio.Runner(loop_factory=loop) as runner:
        ends, late = runner.run(_stall())
    assert late
    assert all(isinstance(end, ConnectionResetError) for end in ends), ends


async def _stall() -> tuple[list[Exception | None], int]:
    """Block the loop at each step of a connect; return how late connections ended, and their number."""
    engine, late = _Engine(), 0
    async with engine.listening() as address:
        pool = ConnectionPool(idle_seconds=1, connect_seconds=0.05)
        for turns in range(1, 6):
            engine.ended.clear()
            connecting = asyncio.create_task(pool.connect(address, "d"))
            for _ in range(turns):
                await asyncio.sleep(0)
            _block(0.1)
            try:
                (await connecting).abort(ConnectionResetError())
            except ConnectTimeout:
                late += 1
            async with asyncio.timeout(5):
                await engine.ended.wait()
    return engine.ends, late


def _block(seconds: float) -> None:
    time.sleep(seconds)
