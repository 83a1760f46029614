"""Engines without progress are asked whether they are paused, beside all other work."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, EndpointEvent, NotReady, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health import stall_judge
from pdx_proxy.health.reports import Report, Round
from pdx_proxy.health.stall_judge import StallJudge
from tests.unit.proxy.health.test_progress import PREFILLING

HUNG, WAITS = (Endpoint(EndpointSpec(Address(host, 1), Role.DECODE), State.WARM, generation=1) for host in "hw")
SNAPSHOT = Snapshot.of([HUNG, WAITS])
LIMIT = 30.0
Answer = Callable[[object, Endpoint], Awaitable[bool]]


def judge_of(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> tuple[StallJudge, list[EndpointEvent]]:
    """A judge of engines that answer so, and what it reports."""
    monkeypatch.setattr(stall_judge, "is_paused", answer)
    events: list[EndpointEvent] = []
    return StallJudge(None, lambda: SNAPSHOT, events.append, LIMIT), events  # type: ignore[arg-type]


def rounds(judge: StallJudge, *at: float) -> None:
    """The one runs requests, the other only has some that wait; neither computes."""
    for now in at:
        waits = replace(PREFILLING, running=0.0, waiting=2.0)
        latest = (Report(HUNG, PREFILLING, now), Report(WAITS, waits, now))
        judge.update(Round(now, SNAPSHOT, latest=latest))


@pytest.mark.parametrize("paused", ["", "h", "w", "hw"])
async def test_who_is_paused_leaves_as_paused_and_who_hangs_is_suspect(
    paused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(_: object, endpoint: Endpoint) -> bool:
        return endpoint.name[0] in paused

    judge, events = judge_of(monkeypatch, answer)
    rounds(judge, 0.0, 40.0)
    await asyncio.sleep(0.01)
    found = {event.name: type(event) for event in events}
    expected = {"h:1": NotReady if "h" in paused else Suspect} | ({"w:1": NotReady} if "w" in paused else {})
    assert found == expected
    assert all(event.cause is Cause.STALLED for event in events if isinstance(event, Suspect))
    await judge.stop()


async def test_an_engine_that_does_not_answer_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def never(_: object, endpoint: Endpoint) -> bool:
        asked.append(endpoint.name)
        await asyncio.sleep(3600)
        return False

    judge, events = judge_of(monkeypatch, never)
    for now in (0.0, 40.0, 50.0, 60.0):
        rounds(judge, now)
        await asyncio.sleep(0.01)
    assert (sorted(asked), events) == (["h:1", "w:1"], [])
    await judge.stop()


async def test_a_question_that_fails_concerns_its_engine_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(_: object, endpoint: Endpoint) -> bool:
        if endpoint.name == "w:1":
            raise OSError(endpoint.name)
        return True

    judge, events = judge_of(monkeypatch, answer)
    rounds(judge, 0.0, 40.0)
    await asyncio.sleep(0.01)
    assert [(event.name, type(event)) for event in events] == [("h:1", NotReady)]
    assert "whether w:1 is paused failed" in caplog.text
    await judge.stop()


@pytest.mark.parametrize("meanwhile", ["nothing", "progress", "stop"])
async def test_what_has_changed_while_an_engine_was_asked_counts(
    meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def answer(_: object, endpoint: Endpoint) -> bool:
        await asked.wait()
        return False

    judge, events = judge_of(monkeypatch, answer)
    rounds(judge, 0.0, 40.0)
    await asyncio.sleep(0)
    if meanwhile == "progress":
        judge.update(Round(42.0, SNAPSHOT, latest=(Report(HUNG, replace(PREFILLING, kv_use=0.5), 42.0),)))
    elif meanwhile == "stop":
        await judge.stop()
    asked.set()
    await asyncio.sleep(0.01)
    assert [event.name for event in events] == (["h:1"] if meanwhile == "nothing" else [])
    await judge.stop()
