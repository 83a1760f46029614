"""An informer continues its watch or lists again, with a pause after each failure."""

import asyncio
from typing import Any

import pytest

from pdx_api.kube import informer as module
from pdx_api.kube.client import ApiError, ExpiredError, MissingError, RefusedError, UnavailableError
from pdx_api.kube.informer import Informer
from pdx_api.kube.kinds import KIND_OF
from tests.unit.api.kube.scripted_api_server import UNREACHABLE, Script, Step, bookmark, event

SERVICE = KIND_OF["Service"]
ROUTE = KIND_OF["HTTPRoute"]
DOUBLED = [pytest.approx(min(0.1 * 2**number, 5.0)) for number in range(12)]
FAILS = "cannot watch services, keeps those that it knows: timeout."
AGAIN = "watches services again."
FORBIDDEN = RefusedError("forbidden", status=403)


class _Names:
    """A store of names, and each state that it had."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.listed: set[str] | None = None
        self.states: list[set[str]] = []

    def begin(self) -> None:
        self.listed = set()

    def put(self, body: dict[str, Any], /) -> None:
        name = body["metadata"]["name"]
        if self.listed is not None:
            self.listed.add(name)
        else:
            self.names.add(name)
            self.states.append(set(self.names))

    def end(self) -> None:
        assert self.listed is not None
        self.names, self.listed = self.listed, None
        self.states.append(set(self.names))

    def delete(self, body: dict[str, Any], /) -> None:
        self.names.remove(body["metadata"]["name"])
        self.states.append(set(self.names))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts. They take no time here; the twelfth ends the script."""
    taken: list[float] = []

    async def sleep(seconds: float) -> None:
        taken.append(seconds)
        if len(taken) == 12:
            raise asyncio.CancelledError

    monkeypatch.setattr(module.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    return taken


def _service(name: str, version: str = "8") -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "uid": "u", "resourceVersion": version}}


def _error(code: int) -> dict[str, Any]:
    return event("ERROR", {"kind": "Status", "code": code, "message": "words"})


async def _run(script: Script, store: _Names | None = None, **more: Any) -> Informer:
    filled, kind = store or _Names(), more.pop("kind", SERVICE)
    informer = Informer(script.cluster, filled, kind, None, "a=b", lambda: 0.5, lambda: script.now, **more)
    with pytest.raises(asyncio.CancelledError):
        await informer.run()
    return informer


async def test_attempts_back_off_while_the_api_server_is_unreachable(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    script, store = Script(), _Names()
    script.list_error = UNREACHABLE
    informer = await _run(script, store)
    assert pauses == DOUBLED
    assert caplog.messages == [FAILS], "logged once"
    assert store.states == []
    assert not informer.synced.is_set()


async def test_an_api_server_that_asks_for_a_pause_gets_it(pauses: list[float]) -> None:
    script = Script()
    script.list_error = UnavailableError("too many requests", status=429, after=3.0)
    await _run(script)
    assert pauses[:6] == [3.0] * 5 + [pytest.approx(3.2)]


async def test_changes_are_stored_and_a_failed_watch_resumes(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(
        [event("ADDED", _service("new", "8")), event("MODIFIED", _service("new", "9")), UNREACHABLE],
        [],
        [event("DELETED", _service("new", "10")), bookmark("12")],
        items=[_service("old")],
    )
    script.later, store = "12", _Names()
    informer = await _run(script, store)
    assert (script.versions[:4], script.lists) == (["7", "9", "9", "12"], 1)
    assert store.states == [{"old"}, {"old", "new"}, {"old", "new"}, {"old"}]
    assert pauses[:3] == [pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.1)], "an event resets the pause"
    assert caplog.messages[:3] == [FAILS, AGAIN, FAILS]
    assert informer.synced.is_set()


@pytest.mark.parametrize("line", [b"<html>", b"[]", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": 7}'])
async def test_after_a_line_without_an_event_everything_is_listed_again(line: bytes, pauses: list[float]) -> None:
    script = Script([line])
    await _run(script)
    assert script.lists == 2


@pytest.mark.parametrize(("code", "lists"), [(410, 2), (429, 1), (500, 1), ("odd", 1)])
async def test_an_error_event_is_retried(code: Any, lists: int, pauses: list[float]) -> None:
    script = Script([_error(code)])
    script.last = []
    await _run(script)
    assert (script.lists, script.versions) == (lists, ["7"] * 12)
    assert pauses == DOUBLED


async def test_after_an_outage_an_expired_version_lists_again_soon(pauses: list[float]) -> None:
    outage: list[list[Step]] = [[UNREACHABLE]] * 5
    script = Script(*outage, [ExpiredError("410")])
    script.seconds = 0.5
    await _run(script)
    assert pauses[4:6] == [pytest.approx(1.6), pytest.approx(0.1)]


async def test_versions_that_expire_at_once_back_off(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    script.last = [ExpiredError("410")]
    await _run(script)
    assert pauses == DOUBLED
    assert (script.lists, len(caplog.messages)) == (12, 0)


async def test_lists_that_expire_back_off(pauses: list[float]) -> None:
    script = Script()
    script.second_page = ExpiredError("410")
    await _run(script)
    assert pauses == DOUBLED


async def test_watches_that_end_at_once_back_off(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    script.last = []
    await _run(script)
    assert pauses == DOUBLED
    assert (script.lists, len(caplog.messages)) == (1, 0)


@pytest.mark.parametrize("end", [[], [UNREACHABLE]], ids=["by itself", "with an error"])
async def test_a_watch_that_lasted_resets_the_pause(
    pauses: list[float], end: list[Step], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script()
    script.seconds, script.last = 90.0, end
    await _run(script)
    assert pauses == [pytest.approx(0.1)] * 12
    assert caplog.messages == [], "its end is no outage"


async def test_everything_is_listed_again_when_events_alone_are_trusted_no_longer(pauses: list[float]) -> None:
    script = Script()
    script.seconds, script.last = 90.0, []
    await _run(script, trusted_seconds=300.0)
    assert script.lists == 3


async def test_a_list_that_fails_on_its_second_page_changes_nothing(pauses: list[float]) -> None:
    script, store = Script(items=[_service("old")]), _Names()
    script.second_page = UNREACHABLE
    await _run(script, store)
    assert (store.states, script.versions) == ([], [])


async def test_everything_is_listed_again_after_a_restore(pauses: list[float]) -> None:
    script = Script([bookmark("9"), _error(500)])
    script.version, script.last = "8", []
    await _run(script)
    # The API server's present version 8 is older than 9: its storage has been restored from a backup.
    assert (script.lists, script.versions[:2]) == (2, ["8", "8"])


async def test_a_list_without_a_version_is_an_outage(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    script.version = ""
    await _run(script)
    assert (script.versions, len(caplog.messages)) == ([], 1)


async def test_an_answer_is_activity_also_if_it_is_a_refusal(pauses: list[float]) -> None:
    script = Script()
    script.list_error = FORBIDDEN
    informer = Informer(script.cluster, _Names(), SERVICE, "ns", "a=b", lambda: 0.5, lambda: script.now)
    script.now = 50.0
    with pytest.raises(asyncio.CancelledError):
        await informer.run()
    assert (informer.refused, informer.last_active, informer.synced.is_set()) == (True, 50.0, False)


@pytest.mark.parametrize("error", [MissingError("HTTP 404", status=404), FORBIDDEN])
async def test_what_cannot_be_listed_is_tried_more_rarely(error: ApiError, pauses: list[float]) -> None:
    script = Script()
    script.list_error = error
    await _run(script, kind=ROUTE, optional=True)
    assert 5.0 < pauses[-1] <= 15.0


@pytest.mark.parametrize("error", [MissingError("HTTP 404", status=404), FORBIDDEN])
async def test_a_kind_that_a_cluster_may_lack_delays_nothing(
    error: ApiError, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    script, store = Script(), _Names()
    script.list_error, store.names = error, {"old"}
    informer = await _run(script, store, kind=ROUTE, optional=True)
    assert (informer.refused, informer.synced.is_set(), store.names) == (False, True, set())
    assert caplog.messages == []
