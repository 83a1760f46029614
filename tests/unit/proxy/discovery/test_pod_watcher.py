"""Watching pods while the API server fails in scripted ways."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from pdx_proxy.discovery import pod_watcher
from pdx_proxy.discovery.pod_api import ClusterError, ExpiredError, PodApi
from pdx_proxy.discovery.pod_watcher import PodWatcher
from tests.unit.proxy.discovery.test_pods import POD, changed

Event = tuple[str, dict[str, Any]]
UNREACHABLE = ClusterError("timeout")


def pod(name: str, version: str, *more: tuple[str, Any]) -> dict[str, Any]:
    return changed(("metadata name", name), ("metadata resourceVersion", version), *more)


class Script:
    """An API server whose watches, one after the other, send some events and then end or fail."""

    def __init__(self, *watches: list[Event | Exception], pods: list[dict[str, Any]] | None = None) -> None:
        self.pods = [POD] if pods is None else pods
        self.watches = list(watches)
        self.lists = 0
        self.versions: list[str] = []
        self.last: list[Event | Exception] = [UNREACHABLE]
        """The events of every further watch."""
        self.seconds = 0.0
        """How long every watch lasts."""
        self.now = 0.0
        self.list_error: Exception | None = None

    async def list(self) -> tuple[list[dict[str, Any]], str]:
        self.lists += 1
        if self.list_error is not None:
            raise self.list_error
        return self.pods, f"list-{self.lists}"

    @asynccontextmanager
    async def watch(self, version: str, seconds: int) -> AsyncIterator[AsyncIterator[Event]]:
        self.versions.append(version)
        yield self._events(self.watches.pop(0) if self.watches else self.last)

    async def _events(self, script: Iterable[Event | Exception]) -> AsyncIterator[Event]:
        self.now += self.seconds
        for each in script:
            if isinstance(each, Exception):
                raise each
            yield each


class Run:
    """The specs and log lines of one run over a script."""

    def __init__(self, script: Script) -> None:
        self.sent: list[list[str]] = []
        self.logged: list[str] = []
        api = cast("PodApi", script)
        self.watcher = PodWatcher(api, self._receive, self.logged.append, lambda: 0.5, lambda: script.now)

    def _receive(self, specs: Any) -> None:
        self.sent.append(sorted(spec.name + ("-" if spec.leaving else "") for spec in specs))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts. They take no time here; the twelfth ends the script."""
    taken: list[float] = []

    async def sleep(seconds: float) -> None:
        taken.append(seconds)
        if len(taken) == 12:
            raise asyncio.CancelledError

    monkeypatch.setattr(pod_watcher.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    return taken


async def watch(script: Script) -> Run:
    run = Run(script)
    with pytest.raises(asyncio.CancelledError):
        await run.watcher.run()
    return run


NAME = POD["metadata"]["name"]


async def test_attempts_back_off_while_the_api_server_is_unreachable(pauses: list[float]) -> None:
    script = Script()
    script.list_error = UNREACHABLE
    run = await watch(script)
    assert pauses == [pytest.approx(min(0.05 * 2**number, 5.0)) for number in range(12)]
    assert run.logged == ["cannot watch pods, keeps the endpoints it has: timeout"], "logged once"
    assert run.sent == [], "the endpoints stay"


async def test_changes_are_sent_and_a_failed_watch_resumes(pauses: list[float]) -> None:
    leaving = pod("new", "6", ("metadata deletionTimestamp", "now"))
    bookmark = {"metadata": {"resourceVersion": "9"}}
    script = Script(
        [("ADDED", pod("new", "5")), ("MODIFIED", leaving), UNREACHABLE],
        [("DELETED", leaving | {"metadata": {**leaving["metadata"], "resourceVersion": "7"}}), ("BOOKMARK", bookmark)],
    )
    run = await watch(script)
    assert script.versions[:4] == ["list-1", "6", "9", "9"]
    assert script.lists == 1
    assert run.sent == [[NAME], ["new", NAME], ["new-", NAME], [NAME], [NAME]]
    assert pauses[:3] == [pytest.approx(0.05)] * 2 + [pytest.approx(0.1)], "an event resets the pause"
    failed, again = "cannot watch pods, keeps the endpoints it has: timeout", "watches pods again"
    assert run.logged[:3] == [failed, again, failed]


async def test_an_expired_version_lists_again(pauses: list[float]) -> None:
    script = Script([ExpiredError("410")], pods=[POD, pod("other", "1")])
    run = await watch(script)
    assert script.versions[:2] == ["list-1", "list-2"]
    assert run.sent == [sorted([NAME, "other"])] * 2
    assert script.lists == 2


async def test_after_an_outage_an_expired_version_lists_again_soon(pauses: list[float]) -> None:
    outage: list[list[Event | Exception]] = [[UNREACHABLE]] * 5
    script = Script(*outage, [ExpiredError("410")])
    script.seconds = 0.5
    await watch(script)
    assert pauses[4:6] == [pytest.approx(0.8), pytest.approx(0.05)]


async def test_versions_that_expire_at_once_back_off(pauses: list[float]) -> None:
    script = Script()
    script.last = [ExpiredError("410")]
    await watch(script)
    assert pauses == [pytest.approx(min(0.05 * 2**number, 5.0)) for number in range(12)]


async def test_watches_that_end_at_once_back_off(pauses: list[float]) -> None:
    script = Script()
    script.last = []
    run = await watch(script)
    assert sum(pauses) > 20
    assert (script.lists, run.logged) == (1, [])


@pytest.mark.parametrize("end", [[], [UNREACHABLE]], ids=["by itself", "with an error"])
async def test_a_watch_that_lasted_resets_the_pause(pauses: list[float], end: list[Event | Exception]) -> None:
    script = Script()
    script.seconds, script.last = 90.0, end
    await watch(script)
    assert pauses == [pytest.approx(0.05)] * 12


async def test_all_pods_are_listed_again_periodically(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_watcher, "_RESYNC_SECONDS", -1.0)
    script = Script()
    script.last = []
    await watch(script)
    assert script.lists == 12
