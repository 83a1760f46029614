"""Whether an engine has died, by what /health shows. In virtual time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address
from pdx_proxy.engines import death_checks
from pdx_proxy.engines.death_checks import DeathChecks, may_have_died
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ClosedConnection,
    ConnectFailure,
    ConnectTimeout,
    DeadlineExceeded,
    EngineBusy,
    EngineFailure,
    LostConnection,
    Reason,
)
from tests.unit.proxy.handoff.virtual_time import run_virtually
from tests.unit.proxy.pools import endpoint

ENGINE = endpoint(1, Role.DECODE)


class FakeConnection:
    """A connection to an engine that answers /health, or is lost instead, and may close it afterwards."""

    def __init__(self, status: int, closes_after: float | None, body: bytes = b"") -> None:
        self._status, self._body = status, body
        self.lost: Exception | None = None
        self.closed = False
        if closes_after is not None:
            asyncio.get_running_loop().call_later(closes_after, setattr, self, "lost", ConnectionResetError())

    def send(self, head: bytes, body: bytes) -> None:
        assert head.startswith(b"GET /health HTTP/1.1\r\nHost: h:")

    async def whole(self) -> Answer:
        if self._status < 0:
            await asyncio.sleep(3600)
        if not self._status:
            raise LostConnection("h:1", "connection lost")
        answer = Answer()
        answer.status = self._status
        answer.headers = [(b"content-type", b"application/json")]
        answer.complete, answer.content, answer.size = True, bytearray(self._body), len(self._body)
        return answer

    def close(self) -> None:
        self.closed = True


class FakePool:
    """Opens connections as a script says: each is a status (0: lost, -1: silent) and when it is closed, or an error."""

    authorization = ""

    def __init__(self, *script: tuple[int, float | None] | EngineFailure) -> None:
        self._script = list(script)
        self.connections: list[FakeConnection] = []

    async def connect(self, address: Address, name: str) -> FakeConnection:
        await asyncio.sleep(0)
        step = self._script.pop(0)
        if isinstance(step, EngineFailure):
            raise step
        self.connections.append(FakeConnection(*step))
        return self.connections[-1]


def _refused(error: OSError) -> ConnectFailure:
    failure = ConnectFailure("h:1", "refused")
    failure.__cause__ = error
    return failure


REFUSED = _refused(ConnectionRefusedError())


def _checks(pool: FakePool) -> tuple[DeathChecks, list[str]]:
    suspects: list[str] = []
    observer = SimpleNamespace(suspect=lambda engine, failure: suspects.append(str(failure)))
    engines: Any = SimpleNamespace(pool=pool, clock=asyncio.get_running_loop().time, observer=observer)
    return DeathChecks(engines), suspects


@pytest.mark.parametrize(
    ("script", "died", "seconds"),
    [
        ([(200, None)], False, 0.1),
        ([(503, None)], True, 0.0),
        ([(503, None, b'{"error":"The model is currently scaling. Please try again later."}')], False, 0.0),
        ([(500, None)], False, 0.1),
        ([REFUSED], True, 0.0),
        ([_refused(ConnectionResetError())], True, 0.0),
        ([_refused(OSError(24, "no file is left"))], False, 0.0),
        ([ConnectTimeout("h:1", "late")], False, 0.0),
        ([(0, None)], True, 0.0),
        ([(-1, None)], False, 1.0),
        ([(200, 0.05), REFUSED], True, 0.1),
        ([(200, 0.05), (200, None)], False, 0.2),
        ([(200, 0.05), (200, 0.05)], False, 0.2),
    ],
    ids=[
        *(
            "it lives",
            "its core is dead",
            "it scales",
            "another error",
            "refused",
            "reset",
            "the gateway has no file left",
        ),
        *("no connection", "lost", "silent", "it dies behind its answer", "it closes one connection", "it closes all"),
    ],
)
def test_what_health_shows(script: list[Any], died: bool, seconds: float) -> None:
    async def check() -> None:
        pool, loop = FakePool(*script), asyncio.get_running_loop()
        checks, suspects = _checks(pool)
        began = loop.time()
        assert await checks.died(ENGINE) is died
        assert loop.time() - began == pytest.approx(seconds)
        assert suspects == (["h:1: has died"] if died else [])
        assert all(connection.closed for connection in pool.connections)

    run_virtually(check())


def test_all_requests_of_a_dead_engine_share_one_check() -> None:
    async def check() -> None:
        checks, suspects = _checks(FakePool(REFUSED))
        assert set(await asyncio.gather(*(checks.died(ENGINE) for _ in range(20)))) == {True}
        assert await checks.died(ENGINE), "known for a moment"
        assert len(suspects) == 1

    run_virtually(check())


def test_a_check_that_began_before_the_failure_does_not_show_that_the_engine_lives() -> None:
    async def check() -> None:
        checks, _ = _checks(FakePool((200, None), REFUSED))
        first = asyncio.create_task(checks.died(ENGINE))
        await asyncio.sleep(0.09)
        assert await checks.died(ENGINE)
        assert not await first

    run_virtually(check())


def test_a_death_is_not_known_for_ever() -> None:
    async def check() -> None:
        checks, _ = _checks(FakePool(REFUSED, (200, None)))
        assert await checks.died(ENGINE)
        await asyncio.sleep(death_checks._MEMORY_SECONDS)
        assert not await checks.died(ENGINE)

    run_virtually(check())


def test_the_dead_among_engines() -> None:
    async def check() -> None:
        checks, _ = _checks(FakePool(REFUSED, (200, None)))
        assert await checks.among([ENGINE, endpoint(2)]) == {ENGINE.name}

    run_virtually(check())


@pytest.mark.parametrize(
    ("failure", "may"),
    [
        (LostConnection("h", "lost"), True),
        (ClosedConnection("h", "closed"), True),
        (BadAnswer("h", "status 500", Reason.STATUS, 500, b""), True),
        (ConnectFailure("h", "refused"), True),
        (ConnectTimeout("h", "late"), False),
        (EngineBusy("h", 1.0, 503, b""), False),
        (DeadlineExceeded("h", "late"), False),
    ],
)
def test_which_failures_may_be_a_death(failure: EngineFailure, may: bool) -> None:
    assert may_have_died(failure) is may
