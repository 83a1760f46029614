"""Overload: which requests wait, which are shed, and with which error."""

import asyncio
import json
from functools import partial
from typing import Any

import openai
import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Limits
from tests.component.conftest import MakeWorld
from tests.component.harness import Reply, Shape, World, eventually, request_of

SLOW = {"decode_token_seconds": 0.01}


def _requests(world: World) -> int:
    return sum(engine.counts.requests.total() for engine in world.engines)


def _queued(world: World) -> int:
    return int(world.report["inFlight"]["queued"])


def _is_full(world: World, waiting: int) -> bool:
    """Whether D runs its only request, and so many wait."""
    return _queued(world) == waiting and world.d.counts.running_now > 0


async def _request_in_order(world: World, count: int, done: list[int]) -> "list[asyncio.Task[Reply]]":
    """Send `count` requests, each when the gateway has the previous one."""
    tasks: list[asyncio.Task[Reply]] = []

    async def one(number: int) -> Reply:
        reply = await world.complete(tokens=10)
        done.append(number)
        return reply

    for number in range(count):
        tasks.append(asyncio.create_task(one(number)))
        await eventually(lambda: world.report["inFlight"]["requests"] + len(done) >= len(tasks))
    return tasks


async def test_requests_wait_in_order_and_further_ones_are_shed(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, d=SLOW, limits=Limits(max_in_flight_per_decode=1, max_requests=3))
    done: list[int] = []
    tasks = await _request_in_order(world, 4, done)
    assert _queued(world) == 3
    reply = await world.complete(prompt="shed")
    assert (reply.status, reply.error["code"], reply.error["type"]) == (429, 429, "RateLimitError")
    assert "queue is full" in reply.error["message"]
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert (await world.call("GET", f"{world.url}/health")).status == 200
    assert (await world.call("GET", f"{world.url}/ready")).status == 200
    assert not any(seen.body.get("prompt") == "shed" for engine in world.engines for seen in engine.seen)
    assert {reply.text for reply in await asyncio.gather(*tasks)} == {Shape().expected(tokens=10)}
    assert done == [0, 1, 2, 3]
    assert await world.outcomes() == {"split": 4, "shed": 1}
    state = await world.state()
    assert {reason: count for reason, count in state["sheds"].items() if count} == {"queue_full": 1}
    assert sum(world.report["phases"]["queue"]["counts"]) == 3


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/messages", "rate_limit_error"),
        ("/v1/messages/count_tokens", "rate_limit_error"),
        ("/v1/responses", "RateLimitError"),
        ("/v1/embeddings", "RateLimitError"),
    ],
)
async def test_a_full_queue_is_429_in_the_shape_of_each_api(path: str, kind: str, make_world: MakeWorld) -> None:
    world = await make_world(
        Order.PREFILL_FIRST, d=SLOW, limits=Limits(max_in_flight_per_decode=1, max_requests=1), debug_headers=True
    )
    tasks = await _request_in_order(world, 2, [])
    reply = await world.post(path, {"model": "sim", "messages": [], "input": "a"})
    assert (reply.status, reply.error["type"]) == (429, kind)
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    await asyncio.gather(*tasks)
    assert (await world.outcomes())["shed"] == 1


async def test_sdks_repeat_a_request_that_met_a_full_queue(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d=SLOW, limits=Limits(max_in_flight_per_decode=1, max_requests=1))
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="k", max_retries=9) as client:
        await client.models.list()
        tasks = []
        for waiting in range(2):
            tasks.append(asyncio.create_task(world.complete(tokens=200)))
            await eventually(partial(_is_full, world, waiting))
        found = await client.completions.create(model="sim", prompt="a", max_tokens=2)
    assert found.choices[0].text == Shape().expected("a", 2)
    await asyncio.gather(*tasks)
    outcomes = await world.outcomes()
    world.sent = sum(outcomes.values())
    assert outcomes["shed"] >= 1


async def test_a_wait_that_is_too_long_is_shed(make_world: MakeWorld) -> None:
    limits = Limits(max_in_flight_per_decode=1, max_wait_seconds=0.05)
    world = await make_world(Order.PREFILL_FIRST, d=SLOW, limits=limits)
    first = asyncio.create_task(world.complete(tokens=150))
    await eventually(lambda: world.d.counts.running_now)
    reply = await world.complete()
    assert (reply.status, reply.error["type"], first.done()) == (503, "ServiceUnavailableError", False)
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert "waited too long" in reply.error["message"]
    assert (await first).status == 200
    assert world.report["sheds"]["queue_timeout"] == 1


async def test_a_client_that_disconnects_leaves_the_queue(make_world: MakeWorld) -> None:
    limits = Limits(max_in_flight_per_decode=1, max_requests=1)
    world = await make_world(Order.PREFILL_FIRST, d=SLOW, limits=limits)
    first = asyncio.create_task(world.complete(tokens=150))
    await eventually(lambda: world.d.counts.running_now)
    _, writer = await world.raw(Shape().body())
    await eventually(lambda: _queued(world) == 1)
    before = _requests(world)
    writer.close()
    await eventually(lambda: _queued(world) == 0)
    assert not first.done()
    second = asyncio.create_task(world.complete())
    await eventually(lambda: _queued(world) == 1)
    assert (await first).status == (await second).status == 200
    assert _requests(world) == before + 2, "no leg for the request that left the queue"
    assert await world.outcomes() == {"split": 2, "client_left": 1}


async def test_after_a_client_gave_up_the_newest_come_first(make_world: MakeWorld) -> None:
    """Those that have waited longest would give up next, while an engine works on them."""
    limits = Limits(max_in_flight_per_decode=1, max_requests=9)
    world = await make_world(Order.PREFILL_FIRST, d={"decode_token_seconds": 0.1}, limits=limits)
    served = asyncio.create_task(world.complete(tokens=10))
    await eventually(lambda: world.d.counts.running_now)
    _, writer = await world.raw(Shape().body())
    await eventually(lambda: _queued(world) == 1)
    done: list[int] = []

    async def one(number: int) -> None:
        assert (await world.complete(tokens=10)).status == 200
        done.append(number)

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(one(number)))
        await eventually(lambda: _queued(world) == len(tasks) + 1)
    writer.close()
    await eventually(lambda: _queued(world) == 4)
    assert not served.done()
    await asyncio.gather(served, *tasks)
    assert done == [3, 2, 1, 0]
    assert await world.outcomes() == {"split": 5, "client_left": 1}


async def test_one_client_has_a_limit_of_its_own(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d=SLOW, limits=Limits(max_requests_per_client=2))
    tasks = await _request_in_order(world, 2, [])
    reply = await world.complete(headers={"X-Forwarded-For": "10.1.2.3"})
    assert (reply.status, reply.error["code"], reply.error["type"]) == (429, 429, "RateLimitError")
    assert "retry-after" in reply.headers
    assert [reply.status for reply in await asyncio.gather(*tasks)] == [200, 200]
    assert (await world.complete()).status == 200
    assert world.report["sheds"]["client_limit"] == 1


CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


async def _answer(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, Any]]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, json.loads(await reader.readexactly(length))


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_bodies_are_bounded(chunked: bool, make_world: MakeWorld) -> None:
    """A body beyond the limit is refused at once, without being read, and reaches no engine."""
    world = await make_world(Order.PREFILL_FIRST, limits=Limits(max_buffered_bytes=1 << 20))
    _reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    half = b'{"prompt":"' + b"x" * (600 << 10)
    head = CHUNKED if chunked else request_of({}).partition(b"Content-Length")[0] + b"Content-Length: 800000\r\n\r\n"
    writer.write(head + (b"%x\r\n" % len(half) if chunked else b"") + half)
    world.sent += 1
    await eventually(lambda: world.worker._admission.usage.buffered >= (600 << 10))
    before = _requests(world)
    for second_chunked in (False, True):
        world.sent += 1
        other_reader, other = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
        if second_chunked:
            other.write(CHUNKED + b"%x\r\n" % len(half) + half)
        else:
            other.write(request_of({}).partition(b"Content-Length")[0] + b"Content-Length: 60000000\r\n\r\n" + half)
        answer, body = await _answer(other_reader)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert "too many request bodies" in body["error"]["message"]
        other.close()
    assert (await world.complete()).status == 200, "a small one still fits"
    assert _requests(world) == before + 2
    writer.close()
    await eventually(lambda: not world.report["inFlight"]["requests"])
    assert world.worker._admission.usage.buffered == 0
    assert world.report["sheds"]["bytes"] == 2


async def test_a_body_is_not_buffered_during_the_relay(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d=SLOW, limits=Limits(max_in_flight_per_decode=1))
    reader, writer = await world.raw(Shape(stream=True).body(tokens=100))
    await reader.readuntil(b"data: ")
    usage = world.worker._admission.usage
    assert (usage.in_flight, usage.buffered) == (1, 0)
    waiting = asyncio.create_task(world.complete())
    await eventually(lambda: _queued(world) == 1)
    assert usage.buffered > 1000
    await reader.readuntil(b"[DONE]")
    assert (await waiting).status == 200
    assert (usage.in_flight, usage.buffered) == (0, 0)
    writer.close()


async def test_a_client_that_sends_on_still_reads_its_refusal(make_world: MakeWorld) -> None:
    """The rest of a refused body is discarded; the connection is not cut while the client reads its answer."""
    world = await make_world(Order.PREFILL_FIRST, d=SLOW, limits=Limits(max_requests_per_client=1))
    tasks = await _request_in_order(world, 1, [])
    reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    size = 20 << 20
    writer.write(request_of({}).partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % size)
    world.sent += 1
    for _ in range(size >> 18):
        writer.write(b"x" * (1 << 18))
        await writer.drain()
    head, _body = await _answer(reader)
    assert head.startswith(b"HTTP/1.1 429 ")
    assert await reader.read(-1) == b""
    writer.close()
    await asyncio.gather(*tasks)


async def test_two_workers_share_the_limits(make_world: MakeWorld) -> None:
    """Together they never exceed a limit, whichever of them has the connections."""
    world = await make_world(
        Order.PREFILL_FIRST,
        d={"decode_token_seconds": 0.02},
        workers=2,
        limits=Limits(max_in_flight_per_decode=4, max_requests=2),
    )
    tasks = [asyncio.create_task(_alone(world)) for _ in range(24)]
    most = 0
    while not all(task.done() for task in tasks):
        most = max(most, world.d.counts.running_now)
        await asyncio.sleep(0.005)
    statuses = [task.result() for task in tasks]
    assert most <= 4
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 4
    state = await world.state()
    assert state["outcomes"]["shed"] == statuses.count(429)


async def _alone(world: World) -> int:
    """A request on a connection of its own; only its status."""
    world.sent += 1
    reply = await world.call("POST", f"{world.url}/v1/completions", Shape().body(tokens=20), {"Connection": "close"})
    return reply.status


async def test_ten_times_too_much(make_world: MakeWorld) -> None:
    """For some seconds: it goes on serving, and queued requests and buffered bytes stay bounded."""
    limits = Limits(max_in_flight_per_decode=8, max_requests=8, max_wait_seconds=1.0)
    world = await make_world(Order.PREFILL_FIRST, d={"decode_token_seconds": 0.002}, limits=limits)
    loop = asyncio.get_running_loop()
    statuses: dict[int, int] = {200: 0, 429: 0, 503: 0}
    ends = loop.time() + 40.0

    def continues() -> bool:
        return loop.time() < ends and not (statuses[429] + statuses[503] > 100 and statuses[200] > 200)

    async def client(pause: float) -> None:
        while continues():
            reply = await world.complete(tokens=10)
            statuses[reply.status] += 1
            if reply.status != 200:
                await asyncio.sleep(pause)

    async def watch() -> None:
        while continues():
            usage = world.worker._admission.usage
            assert usage.in_flight <= 8
            assert usage.waiting <= 8
            assert usage.buffered <= 17 * 4096
            await asyncio.sleep(0.01)

    await asyncio.gather(watch(), *(client(0.1) for _ in range(80)))
    assert statuses[429] + statuses[503] > 100, "it was an overload"
    assert statuses[200] > 200
    report = world.report
    assert report["outcomes"]["shed"] == statuses[429] + statuses[503]
    assert report["outcomes"]["split"] == statuses[200]
