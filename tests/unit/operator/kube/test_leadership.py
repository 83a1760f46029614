"""The Lease of an installation: one operator holds it, another takes over, and a holder that cannot renew it stops."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pdx_api.kube.client import Cluster, ConflictError, MissingError, UnavailableError
from pdx_api.kube.kinds import Kind
from pdx_operator.kube.leadership import Leadership, LeaseLock, LeaseLostError


class _Leases:
    """An API server with one Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.unavailable: set[str] = set()
        self.writes = 0

    def as_seen_by(self, who: str) -> Cluster:
        return cast("Cluster", _Client(self, who))

    def expire(self) -> None:
        """As if its holder had ended, and other operators had waited."""
        assert self.lease is not None
        self.lease["spec"]["holderIdentity"] = ""

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""


class _Client:
    def __init__(self, leases: _Leases, who: str) -> None:
        self._leases = leases
        self._who = who

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        self._check(kind, namespace)
        if self._leases.lease is None:
            raise MissingError("missing", status=404)
        return {**self._leases.lease, "spec": dict(self._leases.lease["spec"])}

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any], *, fenced: bool) -> None:
        self._check(kind, namespace)
        assert not fenced
        if self._leases.lease is not None:
            raise ConflictError("exists", status=409)
        self._store(body)

    async def replace(self, kind: Kind, namespace: str, name: str, body: dict[str, Any], *, fenced: bool) -> None:
        self._check(kind, namespace)
        assert not fenced
        assert self._leases.lease is not None
        if body["metadata"]["resourceVersion"] != self._leases.lease["metadata"]["resourceVersion"]:
            raise ConflictError("changed", status=409)
        self._store(body)

    def _check(self, kind: Kind, namespace: str) -> None:
        assert (kind.plural, namespace) == ("leases", "pdx-system")
        if self._who in self._leases.unavailable:
            raise UnavailableError("unavailable")

    def _store(self, body: dict[str, Any]) -> None:
        self._leases.writes += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._leases.writes)}
        self._leases.lease = {**body, "metadata": metadata}


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _operator(leases: _Leases, name: str, clock: _Clock) -> Leadership:
    lock = LeaseLock(
        leases.as_seen_by(name),
        "pdx-system",
        "pdx",
        identity=name,
        seconds=4,
        clock=clock,
        now=lambda: datetime.now(UTC),
    )
    return Leadership(lock)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The election does not sleep."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0))


@pytest.mark.usefixtures("sleeps")
async def test_one_of_two_operators_leads_and_the_other_takes_over() -> None:
    leases, clock = _Leases(), _Clock()
    first, second = _operator(leases, "a", clock), _operator(leases, "b", clock)
    tasks = [asyncio.create_task(each.run()) for each in (first, second)]
    async with asyncio.timeout(10):
        await first.leading.wait()
        for _ in range(50):
            await asyncio.sleep(0)
    assert (first.holds(), second.holds(), leases.holder) == (True, False, "a")
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await first.release()
    assert not first.holds()
    async with asyncio.timeout(10):
        await second.leading.wait()
    assert (leases.holder, second.holds()) == ("b", True)
    tasks[1].cancel()


@pytest.mark.usefixtures("sleeps")
async def test_a_holder_that_cannot_renew_writes_nothing_more_and_ends() -> None:
    leases, clock = _Leases(), _Clock()
    leader = _operator(leases, "a", clock)
    task = asyncio.create_task(leader.run())
    async with asyncio.timeout(10):
        await leader.leading.wait()
    leases.unavailable.add("a")
    clock.now += 3.9
    assert not leader.holds(), "its Lease may expire before a write arrives"
    async with asyncio.timeout(30):
        with pytest.raises(LeaseLostError, match="pdx-system/pdx could not be renewed"):
            await task


@pytest.mark.usefixtures("sleeps")
async def test_a_release_does_not_take_the_lease_from_another_holder() -> None:
    leases, clock = _Leases(), _Clock()
    leader = _operator(leases, "a", clock)
    task = asyncio.create_task(leader.run())
    async with asyncio.timeout(10):
        await leader.leading.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert leases.lease is not None
    leases.lease["spec"]["holderIdentity"] = "b"
    await leader.release()
    assert leases.holder == "b"
