"""The connections that the pool keeps."""

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pdx_proxy.config.settings import Address
from pdx_proxy.http.upstream import connection_pool
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.connection_pool import ConnectionPool

HERE = Address("here", 8000)
OTHERS = {Address(f"other-{n}", 8000): f"pod-{n}" for n in range(200)}


class Loop:
    """A loop whose time the test sets, and whose connections are made at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    async def create_connection(self, factory: Any, *_: Any) -> None:
        factory()

    def create_task(self, opening: Any) -> Any:
        return asyncio.get_running_loop().create_task(opening)

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> SimpleNamespace:
        timer = (self.now + seconds, call, arguments)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def pass_until(self, now: float) -> None:
        self.now = now
        for timer in [timer for timer in self.timers if timer[0] <= now]:
            self.timers.remove(timer)
            timer[1](*timer[2])


@pytest.fixture
async def loop() -> Loop:
    return Loop()


@pytest.fixture
async def pool(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> ConnectionPool:
    pool = ConnectionPool(idle_seconds=1, connect_seconds=1)
    real = asyncio.get_running_loop()
    monkeypatch.setattr(pool, "_loop", loop)
    monkeypatch.setattr("pdx_proxy.http.upstream.connection_pool.Connection", lambda name, _: Connection(name, real))
    return pool


async def test_a_connection_that_is_over_at_once_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ConnectionPool(idle_seconds=1, connect_seconds=1)

    async def create_connection(factory: Any, *_: Any) -> None:
        factory().connection_lost(None)

    task = asyncio.get_running_loop().create_task
    loop = SimpleNamespace(create_connection=create_connection, create_task=task, time=lambda: 0.0)
    monkeypatch.setattr(pool, "_loop", loop)
    connection = await pool.connect(Address("h", 1), "d")
    assert connection.lost is not None
    assert not any(pool._open.values())


async def test_connections_of_an_engine_that_is_gone_are_cut(pool: ConnectionPool, loop: Loop) -> None:
    pool.keep({HERE: "a"}, 30)
    open_one = await pool.connect(HERE, "d")
    pool.keep({}, 30)
    loop.pass_until(29)
    assert open_one.lost is None
    loop.pass_until(30)
    assert str(open_one.lost) == "its pod is gone"
    assert not pool._departed
    assert not pool._open


async def test_a_pod_that_comes_back_and_goes_again_has_its_whole_time(pool: ConnectionPool, loop: Loop) -> None:
    pool.keep({HERE: "a"}, 30)
    open_one = await pool.connect(HERE, "d")
    pool.keep({}, 30)
    loop.pass_until(20)
    pool.keep({HERE: "a"}, 30)
    loop.pass_until(25)
    pool.keep({}, 30)
    loop.pass_until(50)
    assert open_one.lost is None
    loop.pass_until(55)
    assert open_one.lost is not None


async def test_a_pod_that_is_back_keeps_its_connections(pool: ConnectionPool, loop: Loop) -> None:
    pool.keep({HERE: "a"}, 30)
    open_one = await pool.connect(HERE, "d")
    pool.keep({}, 30)
    pool.keep({HERE: "a"}, 30)
    loop.pass_until(1000)
    assert open_one.lost is None
    assert pool._open[HERE] == {open_one}


async def test_another_pod_with_the_same_address_is_another_engine(pool: ConnectionPool, loop: Loop) -> None:
    pool.keep({HERE: "a"}, 30)
    old = await pool.connect(HERE, "a")
    pool.keep({HERE: "b"}, 30)
    new = await pool.connect(HERE, "b")
    loop.pass_until(30)
    assert (old.lost is not None, new.lost) == (True, None)


async def test_a_connection_to_an_engine_that_is_gone_is_not_reused(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "reusable", property(lambda _: True))
    pool.keep({HERE: "a"}, 30)
    old, kept = await pool.connect(HERE, "a"), await pool.connect(HERE, "a")
    pool.give(kept)
    assert pool.take(HERE, "a") is kept
    pool.keep({HERE: "b"}, 30)
    pool.give(old)
    assert (pool.take(HERE, "b"), old.lost is not None) == (None, True)


async def test_connections_to_other_addresses_live_until_the_next_change(pool: ConnectionPool, loop: Loop) -> None:
    """For example, to an engine that has just been removed, or to a server that is no endpoint."""
    pool.keep(OTHERS, 30)
    stray = await pool.connect(HERE, "x")
    pool.keep(OTHERS, 30)
    loop.pass_until(30)
    assert stray.lost is not None
    assert HERE not in pool._open


async def test_a_change_costs_its_own_connections(pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 engines with 20 connections each: none is read when nothing has changed, 20 when one engine is gone."""
    pool.keep(OTHERS, 30)
    for address in OTHERS:
        for _ in range(20):
            await pool.connect(address, "e")
    reads: list[Connection] = []
    lost = Connection.__dict__["lost"]

    def read(connection: Connection) -> Exception | None:
        reads.append(connection)
        found: Exception | None = lost.__get__(connection)
        return found

    monkeypatch.setattr(Connection, "lost", property(read, lost.__set__))
    pool.keep(dict(OTHERS), 30)
    assert not reads
    gone = next(iter(OTHERS))
    pool.keep({address: pod for address, pod in OTHERS.items() if address != gone}, 30)
    assert len(reads) == 20


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError(113, "Connect call failed ('127.0.0.1', 1)"), "cannot connect: no route to host"),
        (socket.gaierror(-2, "Name or service not known"), "cannot connect: Name or service not known"),
        (OSError("Multiple exceptions: a, b"), "cannot connect: Multiple exceptions: a, b"),
    ],
)
def test_the_reason_repeats_neither_the_number_nor_the_address(error: OSError, text: str) -> None:
    assert connection_pool._reason(error) == text
