"""How pods are followed through whatever an API server does, by scripts."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from pdx_proxy.discovery import pod_watcher
from pdx_proxy.discovery.pod_api import ClusterError, ExpiredError, PodApi
from pdx_proxy.discovery.pod_watcher import Follower
from tests.unit.proxy.discovery.test_pods import POD, changed

Event = tuple[str, dict[str, Any]]
AWAY = ClusterError("away")


def pod(name: str, version: str, *more: tuple[str, Any]) -> dict[str, Any]:
    return changed(("metadata name", name), ("metadata resourceVersion", version), *more)


class Script:
    """An API server whose watches bring, one after the other, some events and then an end or an error."""

    def __init__(self, *watches: list[Event | Exception], pods: list[dict[str, Any]] | None = None) -> None:
        self.pods = [POD] if pods is None else pods
        self.watches = list(watches)
        self.lists = 0
        self.versions: list[str] = []
        self.last: list[Event | Exception] = [AWAY]
        """What every further watch brings."""
        self.seconds = 0.0
        """What every watch lasts before it ends."""
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
    """What following a script came to."""

    def __init__(self, script: Script) -> None:
        self.told: list[list[str]] = []
        self.said: list[str] = []
        api = cast("PodApi", script)
        self.follower = Follower(api, self._tell, self.said.append, lambda: 0.5, lambda: script.now)

    def _tell(self, specs: Any) -> None:
        self.told.append(sorted(spec.name + ("-" if spec.leaving else "") for spec in specs))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time here; after the twelfth the script is over."""
    taken: list[float] = []

    async def sleep(seconds: float) -> None:
        taken.append(seconds)
        if len(taken) == 12:
            raise asyncio.CancelledError

    monkeypatch.setattr(pod_watcher.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    return taken


async def follow(script: Script) -> Run:
    run = Run(script)
    with pytest.raises(asyncio.CancelledError):
        await run.follower.run()
    return run


NAME = POD["metadata"]["name"]


async def test_an_api_server_that_is_away_is_asked_ever_more_seldom(pauses: list[float]) -> None:
    script = Script()
    script.list_error = AWAY
    run = await follow(script)
    assert pauses == [pytest.approx(min(0.05 * 2**number, 5.0)) for number in range(12)]
    assert run.said == ["cannot watch pods, goes on with those it knows: away"], "said once"
    assert run.told == [], "what is known stays"


async def test_changes_are_told_and_a_broken_watch_goes_on_where_it_was(pauses: list[float]) -> None:
    leaving = pod("new", "6", ("metadata deletionTimestamp", "now"))
    bookmark = {"metadata": {"resourceVersion": "9"}}
    script = Script(
        [("ADDED", pod("new", "5")), ("MODIFIED", leaving), AWAY],
        [("DELETED", leaving | {"metadata": {**leaving["metadata"], "resourceVersion": "7"}}), ("BOOKMARK", bookmark)],
    )
    run = await follow(script)
    assert script.versions[:4] == ["list-1", "6", "9", "9"]
    assert script.lists == 1
    assert run.told == [[NAME], ["new", NAME], ["new-", NAME], [NAME], [NAME]]
    assert pauses[:3] == [pytest.approx(0.05)] * 2 + [pytest.approx(0.1)], "news make it eager again"
    away, again = "cannot watch pods, goes on with those it knows: away", "watches pods again"
    assert run.said[:3] == [away, again, away]


async def test_a_version_that_is_too_old_lists_anew(pauses: list[float]) -> None:
    script = Script([ExpiredError("410")], pods=[POD, pod("other", "1")])
    run = await follow(script)
    assert script.versions[:2] == ["list-1", "list-2"]
    assert run.told == [sorted([NAME, "other"])] * 2
    assert script.lists == 2


async def test_watches_that_end_at_once_are_not_asked_without_pause(pauses: list[float]) -> None:
    script = Script()
    script.last = []
    run = await follow(script)
    assert sum(pauses) > 20
    assert (script.lists, run.said) == (1, [])


@pytest.mark.parametrize("end", [[], [AWAY]], ids=["by itself", "with an error"])
async def test_after_a_watch_that_lasted_the_next_one_begins_at_once(
    pauses: list[float], end: list[Event | Exception]
) -> None:
    script = Script()
    script.seconds, script.last = 90.0, end
    await follow(script)
    assert pauses == [pytest.approx(0.05)] * 12


async def test_all_pods_are_listed_anew_now_and_then(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_watcher, "_RESYNC_SECONDS", -1.0)
    script = Script()
    script.last = []
    await follow(script)
    assert script.lists == 12
