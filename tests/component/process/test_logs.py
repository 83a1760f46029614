"""The gateway's log: which requests get a line, its content, and what it never contains."""

import asyncio
import json
import logging
from typing import Any

import pytest

from pdx_api.logs import JsonFormatter, TextFormatter
from pdx_api.names import Order
from pdx_api.settings.gateway import Logs
from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.request import Request
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.telemetry import access_log
from pdx_proxy.telemetry.access_log import LINES_PER_SECOND, AccessLog
from pdx_proxy.telemetry.counters import Outcome
from pdx_proxy.telemetry.timeline import Timeline
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import SHORT, Shape, eventually

LOGGER = "pdx_proxy.telemetry.access_log"
EVERY = Logs(slow_seconds=0.0)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines about requests, read back from JSON."""
    formatter = JsonFormatter()
    return [json.loads(formatter.format(record)) for record in caplog.records if record.name == LOGGER]


def everything(caplog: pytest.LogCaptureFixture) -> str:
    """Everything that was logged, in both formats."""
    forms = (JsonFormatter(), TextFormatter("%(name)s %(message)s"))
    return "\n".join(form.format(record) for record in caplog.records for form in forms)


async def test_a_request_that_is_fine_has_no_line(
    order: Order, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = await make_world(order)
    assert (await world.complete()).status == 200
    assert (await world.complete(tokens=0)).status == 400  # the client's error
    assert (await world.post("/v1/completions", b"{")).status == 400
    assert lines(caplog) == []


async def test_a_slow_request_has_its_phases_and_legs(
    order: Order, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = await make_world(order, logs=EVERY)
    reply = await world.complete(headers={"X-Request-Id": "mine"})
    await eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    names = [world.endpoint(engine).name for engine in (world.p, world.d)]
    legs = {leg["role"]: leg for leg in line["legs"]}
    assert [legs[role]["endpoint"] for role in ("prefill", "decode")] == names
    assert legs["decode"]["id"] == reply.json["id"].removeprefix("cmpl-").split("-")[0]
    assert (legs["prefill"]["id"] == legs["decode"]["id"]) is not world.pull, "push: the id is the transfer id"
    found = (line["outcome"], line["client_id"], line["path"], line["stream"], line["failures"], line["level"])
    assert found == ("split", "mine", "/v1/completions", False, [], "warning")
    assert line["message"] == "request was slow"
    times = [line[f"{phase}_seconds"] for phase in ("to_prefill", "prefill", "handoff", "first_token", "total")]
    assert all(time >= 0 for time in times)
    assert times[-1] == max(times)


async def test_what_is_slow_is_the_beginning_of_an_answer(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    slow = {"decode_token_seconds": 0.05}
    world = await make_world(Order.PREFILL_FIRST, d=slow, logs=Logs(slow_seconds=1.5))
    assert (await world.complete(Shape(stream=True), tokens=40)).done  # 2 s, but the first event comes at once
    assert lines(caplog) == []
    assert (await world.complete(tokens=40)).status == 200
    await eventually(lambda: lines(caplog))
    assert [line["message"] for line in lines(caplog)] == ["request was slow"]


async def test_a_failed_request_lists_its_attempts(
    order: Order, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = await make_world(order, deadlines=SHORT)
    world.allowed.stranded = world.allowed.expired = True
    for engine in world.engines:
        await engine.kill()
    assert (await world.complete()).status == 503
    await eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert (line["message"], line["outcome"]) == ("request failed", "unavailable")
    assert set(line["failures"]) <= {"connect", "lost"}
    assert line["failures"]
    assert "first_token_seconds" not in line
    for engine in world.engines:
        await engine.restart()
    await world.warm()


async def test_a_stream_that_breaks_has_a_line(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    world.fault(world.d, FaultKind.DIE_AFTER_EVENTS, events=3)
    await world.complete(Shape(stream=True), tokens=20)
    await eventually(lambda: lines(caplog))
    assert [(line["outcome"], len(line["legs"])) for line in lines(caplog)] == [("broken", 2)]
    await world.warm()


@pytest.mark.parametrize("form", [Shape(), Shape(stream=True)], ids=["text", "text-stream"])
async def test_an_error_inside_is_an_outcome_of_its_own(
    form: Shape,
    order: Order,
    make_world: MakeWorld,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Open hand-offs are settled. The line has the place of the error, not its message."""
    world = await make_world(order)
    first_event = Leg.first_event

    async def fail_once(leg: Leg, seconds: float) -> None:
        monkeypatch.setattr(Leg, "first_event", first_event)
        raise KeyError("Tell-nobody-of-4711")

    monkeypatch.setattr(Leg, "first_event", fail_once)
    reply = await world.complete(form)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (500, 500, "InternalServerError")
    assert await world.outcomes() == {"internal": 1}
    (line,) = lines(caplog)
    assert (line["message"], line["outcome"], line["error"]) == ("request failed", "internal", "KeyError")
    assert line["raised_in"][-1].startswith("test_logs.py:")
    assert {leg["role"] for leg in line["legs"]} >= {"decode"}
    assert "total_seconds" in line
    assert "Tell-nobody" not in everything(caplog)
    assert (await world.complete(form)).text == form.expected()


async def test_an_error_inside_ps_leg_is_settled(
    order: Order,
    make_world: MakeWorld,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D waits for a push that never comes. The client gets an error at once, and the hand-off is settled."""
    world = await make_world(order)
    world.allowed.stranded = not world.pull
    send = WorkerState.send_prefill

    def fail_once(serving: WorkerState, leg: Leg, request: Request, body: bytes, request_id: str) -> None:
        monkeypatch.setattr(WorkerState, "send_prefill", send)
        send(serving, leg, request, body, request_id)
        raise KeyError("Tell-nobody-of-4711")

    monkeypatch.setattr(WorkerState, "send_prefill", fail_once)
    reply = await asyncio.wait_for(world.complete(), 10.0)
    assert (reply.status, reply.error["type"]) == (500, "InternalServerError")
    assert await world.outcomes() == {"internal": 1}
    await eventually(lambda: sum(world.report["settlements"].values()) == 1, what="it is settled")
    (line,) = lines(caplog)
    assert (line["outcome"], line["error"]) == ("internal", "KeyError")
    assert "Tell-nobody" not in everything(caplog)


async def test_nothing_of_a_prompt_a_key_or_a_header_is_logged(
    order: Order, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "Tell-nobody-of-4711"
    short = {"lease_seconds": 1.0}  # a P whose answer cannot be read keeps its blocks
    world = await make_world(order, sim=short, logs=EVERY, deadlines=SHORT)
    world.allowed.stranded = world.allowed.expired = True
    headers = {
        "Authorization": f"Bearer {secret}",
        "x-api-key": secret,
        "x-session-id": secret,
        "X-Request-Id": "ours",
        "traceparent": secret,
    }
    for body in ({"prompt": secret}, {"prompt": secret, "stream": True, "user": secret}, {"prompt": secret, "n": 2}):
        await world.post(f"/v1/completions?{secret}", {"model": secret, "max_tokens": 4, **body}, headers)
    for kind in (FaultKind.GARBAGE_BYTES, FaultKind.GARBAGE_JSON, FaultKind.STATUS):
        world.fault(world.p, kind)
        await world.post("/v1/completions", {"prompt": secret, "max_tokens": 4}, headers)
        await world.warm()
    await world.post(f"/v1/{secret}", {}, headers, counted=False)
    await world.post("/v1/completions", f'{{"prompt": "{secret}'.encode(), headers)
    await eventually(lambda: len(lines(caplog)) >= 7)
    assert "ours" in everything(caplog)
    assert secret.lower() not in everything(caplog).lower()


async def test_a_client_id_is_cut_and_cleaned(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = await make_world(Order.PREFILL_FIRST, logs=EVERY)
    await world.complete(headers={"X-Request-Id": "a b\té" + "x" * 500})
    await eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert line["client_id"].startswith("a?b?")
    assert len(line["client_id"]) == 128
    assert line["client_id"].isascii()
    text = TextFormatter("%(message)s").format(next(r for r in caplog.records if r.name == LOGGER))
    assert text.startswith("request was slow outcome=split path=/v1/completions ")
    assert text.count("\n") == 0


async def test_many_failures_give_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = AccessLog(Logs(), 1, dict, lambda: now[0])

    def fail(times: int) -> None:
        for _ in range(times):
            log.note("/v1/completions", "", Outcome.SHED, Timeline(), 0.1)

    fail(1000)
    assert len(lines(caplog)) == LINES_PER_SECOND
    await eventually(lambda: len(lines(caplog)) > LINES_PER_SECOND)
    assert lines(caplog)[-1]["left_out"] == 1000 - LINES_PER_SECOND
    now[0] += 1.0
    caplog.clear()
    fail(3)
    await asyncio.sleep(0)
    assert len(lines(caplog)) == 3


async def test_an_error_is_described_where_a_line_is_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AccessLog(Logs(), 1, dict, lambda: 100.0)
    described: list[Exception] = []

    def describe(error: Exception) -> dict[str, str]:
        described.append(error)
        return {}

    monkeypatch.setattr(access_log, "describe_raised", describe)
    for _ in range(1000):
        log.note("/v1/completions", "", Outcome.INTERNAL, Timeline(), 0.1, KeyError())
    assert len(described) == len(lines(caplog)) == LINES_PER_SECOND


def test_workers_share_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(EVERY, 2 * LINES_PER_SECOND, dict, lambda: 100.0)
    log.note("/v1/completions", "", Outcome.WHOLE, Timeline(), 0.1)
    assert len(lines(caplog)) == 1
    assert log._may_write() is False


async def test_a_request_without_a_line_formats_nothing(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log costs a request only a comparison."""
    world = await make_world(Order.PREFILL_FIRST)
    monkeypatch.delattr(AccessLog, "note")
    assert (await world.complete()).status == 200
    assert (await world.complete(n=2)).status == 200
    assert (await world.complete(Shape(stream=True))).done
