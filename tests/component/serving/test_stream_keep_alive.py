"""Comments in streams while engines prefill: what they commit to, and what goes on as before."""

import asyncio
import json
from dataclasses import replace

import openai
import pytest

from pdx_api.names import Order
from pdx_api.settings.gateway import Streams
from pdx_proxy.config.settings import Deadlines, Limits
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import SHAPES, SHORT, Shape, eventually

COMMENT = b": keep-alive\n\n"
FAST = Streams(stream_keep_alive_seconds=0.05)
SLOW = {"prefill_base_seconds": 0.4}
LEASE = {"lease_seconds": 2.0}
TEXT = Shape(stream=True)


def _events(raw: bytes) -> tuple[int, bytes]:
    """How many comments come first, and what follows them."""
    comments = 0
    while raw.startswith(COMMENT):
        raw, comments = raw.removeprefix(COMMENT), comments + 1
    assert COMMENT not in raw, "none follows the first event"
    return comments, raw


def _text(raw: bytes) -> str:
    events = [each.removeprefix(b"data: ") for each in raw.split(b"\n\n") if each]
    assert events[-1] == b"[DONE]"
    return "".join(
        choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        for event in events[:-1]
        for choice in json.loads(event)["choices"]
    )


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.stream], ids=["text", "chat"])
async def test_comments_come_until_the_first_event(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, p=SLOW, streams=FAST)
    reply = await world.complete(shape, {"X-Request-Id": "mine"})
    comments, rest = _events(reply.raw)
    assert comments >= 2
    assert (reply.status, _text(rest)) == (200, shape.expected())
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert (reply.headers["x-accel-buffering"], reply.headers["x-request-id"]) == ("no", "mine")
    assert reply.headers["date"]
    assert await world.outcomes() == {"split": 1}


async def test_clients_do_not_see_them(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, p=SLOW, streams=FAST)
    client = openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0)
    stream = await client.completions.create(model="sim", prompt="hello there", max_tokens=8, stream=True)
    assert "".join([event.choices[0].text async for event in stream]) == TEXT.expected("hello there")
    await client.close()
    world.sent += 1


async def test_other_answers_are_as_before(make_world: MakeWorld) -> None:
    """Without a stream, without the setting, and where the first event is faster."""
    world = await make_world(Order.PREFILL_FIRST, p=SLOW, streams=FAST)
    reply = await world.complete(Shape())
    assert (reply.status, reply.text) == (200, Shape().expected())
    assert reply.headers["content-type"].startswith("application/json")
    assert int(reply.headers["content-length"]) == len(reply.raw)
    reply = await world.post("/v1/embeddings", {"input": "a", "stream": True})
    assert (reply.status, reply.json["object"]) == (200, "list")
    reply = await world.complete(TEXT, tokens=0, n=2)
    assert (reply.status, reply.error["code"]) == (400, 400), "an error before the first comment keeps its status"
    other = await make_world(Order.PREFILL_FIRST, p=SLOW)
    assert _events((await other.complete(TEXT)).raw)[0] == 0
    quick = await make_world(Order.PREFILL_FIRST, streams=Streams(stream_keep_alive_seconds=20.0))
    assert _events((await quick.complete(TEXT)).raw)[0] == 0


async def test_http_1_0(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, p=SLOW, streams=FAST)
    reader, writer = await world.raw(TEXT.body(), version="1.0", head="Connection: keep-alive\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    comments, rest = _events(body)
    assert (comments > 1, _text(rest)) == (True, TEXT.expected())
    assert b"\r\nconnection: close" in head.lower()
    assert b"transfer-encoding" not in head.lower()
    writer.close()


async def test_a_connection_serves_on(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, p=SLOW, streams=FAST)
    for number in range(2):
        reply = await world.complete(TEXT, prompt=f"prompt {number}")
        assert _text(_events(reply.raw)[1]) == TEXT.expected(f"prompt {number}")
    assert len(world.worker._listener._connections) == 1


@pytest.mark.parametrize("kind", [FaultKind.DIE_BEFORE_HEAD, FaultKind.STATUS, FaultKind.ERROR_EVENT])
async def test_attempts_go_on_behind_a_comment(kind: FaultKind, order: Order, make_world: MakeWorld) -> None:
    """No byte of an engine has been sent, so a failure before the first event is retried."""
    deadlines = Deadlines(settle=1.0)
    world = await make_world(order, decode=2, sim={**SLOW, **LEASE}, streams=FAST, deadlines=deadlines)
    world.allowed.expired = world.allowed.stranded = True
    for engine in world.decode:
        world.fault(engine, kind, status=500)
    reply = await world.complete(TEXT)
    comments, rest = _events(reply.raw)
    assert (comments > 0, _text(rest)) == (True, TEXT.expected())


FAULTS = {
    "500": (FaultKind.STATUS, 500, "unavailable"),
    "400": (FaultKind.STATUS, 400, "refused_by_engine"),
    "503": (FaultKind.DIE_BEFORE_HEAD, 503, "unavailable"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_an_error_behind_a_comment_is_an_event(name: str, make_world: MakeWorld) -> None:
    """Every attempt fails: split ones, and that of D alone."""
    kind, status, outcome = FAULTS[name]
    world = await make_world(Order.PREFILL_FIRST, p=SLOW, sim=LEASE, streams=FAST)
    world.allowed.expired = True
    world.d.faults.add(kind, status=status, count=None)
    reply = await world.complete(TEXT)
    comments, rest = _events(reply.raw)
    assert (comments > 0, reply.status, reply.cut) == (True, 200, False)
    event, done, end = rest.split(b"\n\n")
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (done, end, error["code"]) == (b"data: [DONE]", b"", status)
    assert await world.outcomes() == {outcome: 1}
    world.d.faults.clear()


async def test_the_openai_client_raises_it(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, p=SLOW, sim=LEASE, streams=FAST)
    world.d.faults.add(FaultKind.STATUS, status=500, count=None)
    world.allowed.expired = True
    client = openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.APIError):
        async for _ in await client.completions.create(model="sim", prompt="hi", max_tokens=8, stream=True):
            pass
    await client.close()
    world.d.faults.clear()
    world.sent += 1


async def test_an_expired_request_ends_with_an_event(make_world: MakeWorld) -> None:
    deadlines = replace(
        SHORT,
        total_seconds=0.5,
        prefill_seconds=0.5,
        first_event_seconds=0.5,
        handoff_seconds=0.5,
        connect_seconds=0.5,
        idle_seconds=0.5,
    )
    limits = Limits(max_wait_seconds=0.1)
    world = await make_world(Order.PREFILL_FIRST, streams=FAST, deadlines=deadlines, limits=limits)
    world.fault(world.p, FaultKind.LONG_PREFILL, seconds=1.0)
    world.allowed.expired = True
    reply = await world.complete(TEXT)
    comments, rest = _events(reply.raw)
    assert comments > 1
    assert json.loads(rest.split(b"\n\n")[0].removeprefix(b"data: "))["error"]["code"] == 504
    assert await world.outcomes() == {"expired": 1}


async def test_a_queued_request_gets_none(make_world: MakeWorld) -> None:
    """It may still be shed, with a status and a Retry-After."""
    limits = Limits(max_in_flight_per_decode=1, max_wait_seconds=0.3)
    world = await make_world(Order.PREFILL_FIRST, p={"prefill_base_seconds": 1.5}, streams=FAST, limits=limits)
    first = asyncio.create_task(world.complete(TEXT, prompt="first"))
    await eventually(lambda: world.p.counts.running_now)
    reply = await world.complete(TEXT, prompt="second")
    assert (reply.status, "retry-after" in reply.headers) == (503, True)
    assert _text(_events((await first).raw)[1]) == TEXT.expected("first")


async def test_a_client_that_leaves_behind_a_comment(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, p={"prefill_base_seconds": 1.0}, streams=FAST)
    reader, writer = await world.raw(TEXT.body())
    await reader.readuntil(COMMENT)
    writer.close()
    await eventually(lambda: world.report["outcomes"]["client_left"])


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("shape", [TEXT, Shape(stream=True, agent="messages")], ids=lambda shape: shape.label)
async def test_shutdown_ends_a_stream_with_an_event(shape: Shape, version: str, make_world: MakeWorld) -> None:
    """In HTTP/1.0 a connection that is closed would end a whole answer."""
    world = await make_world(Order.PREFILL_FIRST, p={"prefill_base_seconds": 1.0}, streams=FAST, shutdown_seconds=0.3)
    world.allowed.expired = True
    reader, writer = await world.raw(shape.body(), path=shape.path, version=version)
    await reader.readuntil(COMMENT)
    stop = asyncio.create_task(world.gateway.stop())
    received = await reader.read()
    assert b"The gateway is shutting down." in received
    ending = b'"code":503}}\n\ndata: [DONE]\n\n' if shape is TEXT else b'shutting down."}}\n\n'
    assert received.endswith(ending if version == "1.0" else ending + b"\r\n0\r\n\r\n")
    await stop
    world.control = None
    writer.close()


async def test_shutdown_cuts_a_stream_over_http_1_0(make_world: MakeWorld) -> None:
    """Its answer has begun, and is not in chunks: an event could be written into another one."""
    world = await make_world(Order.PREFILL_FIRST, d={"decode_token_seconds": 0.05}, shutdown_seconds=0.3)
    world.allowed.orphan_tokens = 200
    reader, writer = await world.raw(TEXT.body(tokens=400), version="1.0")
    await reader.readuntil(b"data: ")
    stop = asyncio.create_task(world.gateway.stop())
    with pytest.raises(ConnectionResetError):
        await reader.read()
    await stop
    world.control = None
    writer.close()
