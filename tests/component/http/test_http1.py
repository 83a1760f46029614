"""The fast path: how it reads, when aiohttp takes over a connection, and which clients it disconnects."""

import asyncio
import json

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Limits
from pdx_proxy.http.downstream import fallback, http1, listener, transport
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually, request_of

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def _open(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of an answer with a Content-Length."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.split(b"content-length: ")[1].split(b"\r\n")[0]
    return int(head.split()[1]), await reader.readexactly(int(length))


def _chunked(body: bytes, step: int = 7) -> bytes:
    parts = [body[begin : begin + step] for begin in range(0, len(body), step)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def _requests(world: World) -> int:
    return sum(engine.counts.requests.total() for engine in world.engines)


@pytest.mark.parametrize("step", [1, 3, 50, 1000])
async def test_a_request_in_pieces(step: int, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    world.sent += 2
    for prompt in ("first", "second"):
        request = request_of(Shape().body(prompt), head="X-Request-Id: mine\r\n")
        for begin in range(0, len(request), step):
            writer.write(request[begin : begin + step])
            await asyncio.sleep(0)
        status, body = await _answer(reader)
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, Shape().expected(prompt))
    writer.close()


async def test_every_kind_of_request_on_one_connection(make_world: MakeWorld) -> None:
    """All sent at once: hot requests, one for the fallback, which reads all that follow, and hot requests again."""
    world = await make_world(Order.PREFILL_FIRST)
    hot = request_of(Shape().body("hot"))
    chunks = _chunked(json.dumps(Shape().body("chunks")).encode())
    reader, writer = await _open(world)
    writer.write(hot + hot + HEALTH + hot + chunks + HEALTH)
    world.sent += 4
    expected = ["hot", "hot", "", "hot", "chunks", ""]
    for prompt in expected:
        status, body = await _answer(reader)
        assert status == 200
        assert (json.loads(body)["choices"][0]["text"] if prompt else "") == (
            Shape().expected(prompt) if prompt else ""
        )
    writer.close()
    assert await world.outcomes() == {"split": 4}


async def test_reading_is_paused_for_a_client_far_ahead(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    requests = [request_of(Shape().body(f"{number} " + "x" * 2000)) for number in range(150)]
    assert sum(map(len, requests)) > 3 * http1._MAX_AHEAD_BYTES
    world.sent += len(requests)
    writer.write(b"".join(requests))
    for number in range(len(requests)):
        status, body = await _answer(reader)
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, Shape().expected(f"{number} " + "x" * 2000))
    writer.close()


BAD: dict[str, bytes] = {
    "two-lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "two-equal-lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "length-and-chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "negative-length": HEAD + b"Content-Length: -2\r\n\r\n{}",
    "plus-length": HEAD + b"Content-Length: +2\r\n\r\n{}",
    "spaced-name": HEAD + b"Content-Length : 2\r\n\r\n{}",
    "folded": HEAD + b"X-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "bare-cr": HEAD + b"X-A: a\rb\r\nContent-Length: 2\r\n\r\n{}",
    "nul": HEAD + b"X-A: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "no-colon": HEAD + b"nothing\r\nContent-Length: 2\r\n\r\n{}",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "long-header": HEAD + b"X-Long: " + b"x" * 100_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "many-headers": HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(5000)) + b"Content-Length: 2\r\n\r\n{}",
    "bad-chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "long-chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
    "xchunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("first", [False, True], ids=["behind-another", "first"])
@pytest.mark.parametrize("name", BAD)
async def test_bytes_that_are_not_http_end_the_connection(name: str, first: bool, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    if not first:
        world.sent += 1
        writer.write(request_of(Shape().body()))
        assert (await _answer(reader))[0] == 200
    requests = _requests(world)
    writer.write(BAD[name])
    rest = b""
    try:
        async with asyncio.timeout(5):
            rest = await reader.read(-1)
    except ConnectionResetError:
        pass
    writer.close()
    status = 431 if name in ("long-header", "many-headers") else 400
    assert int(rest.split()[1]) == status, rest[:200]
    assert rest.count(b"\r\n\r\n") == 1
    assert json.loads(rest.split(b"\r\n\r\n")[1])["error"]["code"] == status
    assert _requests(world) == requests
    await eventually(lambda: not world.report["inFlight"]["requests"])
    world.sent = sum((await world.outcomes()).values())  # an incomplete body was a request, a bad head was not


async def test_a_connection_outlives_refusals(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    bad = HEAD + b"Content-Length: 1\r\n\r\n{"
    for _ in range(3):
        writer.write(bad)
        assert (await _answer(reader))[0] == 400
        writer.write(request_of(Shape().body("good")))
        assert (await _answer(reader))[0] == 200
    world.sent += 6
    writer.close()
    assert await world.outcomes() == {"refused": 3, "split": 3}


async def test_connection_close(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await world.raw(Shape().body(), head="Connection: close\r\n")
    answer = await reader.read(-1)
    assert b"\r\nconnection: close\r\n" in answer
    writer.close()


async def test_connection_close_with_an_empty_body(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    listen = world.gateway.listen
    reader, writer = await asyncio.open_connection(listen.host, listen.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    world.sent += 1
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_client_that_closes_its_sending_half_has_left(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, p={"prefill_base_seconds": 0.2})
    reader, writer = await world.raw(Shape().body())
    writer.write_eof()
    assert await reader.read(-1) == b""
    await eventually(lambda: not world.report["inFlight"]["requests"])
    assert await world.outcomes() == {"client_left": 1}
    writer.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become fractions of one."""
    monkeypatch.setattr(listener, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(http1, "_HEAD_SECONDS", 0.2)
    monkeypatch.setattr(http1, "_IDLE_SECONDS", 0.4)
    monkeypatch.setattr(fallback, "_IDLE_SECONDS", 0.4)
    monkeypatch.setattr(transport, "_BODY_SECONDS", 0.2)
    monkeypatch.setattr(transport, "_SLOWEST_BYTES_PER_SECOND", 1e9)


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send single bytes, which must not extend any deadline."""
    for index in range(len(data)):
        writer.write(data[index : index + 1])
        await asyncio.sleep(0.03)


SLOW: dict[str, tuple[bytes, bytes, int]] = {
    "nothing": (b"", b"", 0),
    "first-line": (b"POST /v1/com", b"", 0),
    "head": (HEAD, b"X-Slow: " + b"x" * 1000, 0),
    "another-line": (b"GET /v1/mod", b"", 0),
    "another-head": (HEALTH[:-2], b"X-Slow: " + b"x" * 1000, 0),
    "body": (HEAD + b"Content-Length: 5000\r\n\r\n{", b" " * 1000, 1),
    "body-that-stops": (HEAD + b"Content-Length: 5000\r\n\r\n{", b"", 1),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 200, 1),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", SLOW)
async def test_a_slow_client_is_disconnected(name: str, make_world: MakeWorld) -> None:
    begin, drops, counted = SLOW[name]
    world = await make_world(Order.PREFILL_FIRST, limits=Limits(max_body_size=1000 * 1000))
    requests = _requests(world)
    reader, writer = await _open(world)
    writer.write(begin)
    dripping = asyncio.create_task(_drip(writer, drops))
    async with asyncio.timeout(3):
        answer = b""
        while piece := await _read(reader):
            answer += piece
            if name == "chunks":
                break  # aiohttp answers and reads on for a while, so that the answer is not lost
    dripping.cancel()
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n") is (
        name not in {"nothing", "another-line", "another-head"}
    )
    writer.close()
    world.sent += counted
    assert await world.outcomes() == ({"refused": 1} if counted else {})
    assert _requests(world) == requests


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1000)
    except ConnectionResetError:  # it had not read everything
        return b""


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_waits_for_its_answer_is_not_slow(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d={"decode_token_seconds": 0.02})
    reader, writer = await world.raw(Shape().body(tokens=40))
    assert (await _answer(reader))[0] == 200
    writer.close()


async def test_fast_path_and_fallback_are_both_used(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    fallen_back: list[bytes] = []
    fall_back = http1.Http1Connection._fall_back

    def note(self: http1.Http1Connection, data: bytes) -> None:
        fallen_back.append(data)
        fall_back(self, data)

    monkeypatch.setattr(http1.Http1Connection, "_fall_back", note)
    world = await make_world(Order.PREFILL_FIRST)
    for chat in (False, True):
        reader, writer = await world.raw(Shape(chat).body(), Shape(chat).path)
        assert (await _answer(reader))[0] == 200
        writer.close()
    assert not fallen_back
    reader, writer = await world.raw(Shape().body(), "/v1/completions?a=b")
    assert (await _answer(reader))[0] == 200
    writer.close()
    assert len(fallen_back) == 1


async def test_a_connection_beyond_the_limit_gets_503(make_world: MakeWorld) -> None:
    """Idle connections count, on the fast path and at aiohttp. A new one may replace a closed one."""
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    writer.write(HEALTH)
    assert (await _answer(reader))[0] == 200
    idle_reader, idle = await _open(world)
    world.worker._listener.most_connections = 2
    await eventually(lambda: world.worker._listener.room() == 0)
    for _ in range(3):
        other_reader, other = await _open(world)
        other.write(request_of(Shape().body()))
        answer = await other_reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 503
        other.close()
    writer.write(HEALTH)
    assert (await _answer(reader))[0] == 200
    for each in (writer, idle):
        each.close()
    await eventually(lambda: world.worker._listener.room() == 2)
    assert (await world.complete()).status == 200
    assert idle_reader


async def test_a_flood_of_connections_is_cut(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "_REFUSALS", 2)
    world = await make_world(Order.PREFILL_FIRST)
    world.worker._listener.most_connections = 0
    clients = [await _open(world) for _ in range(6)]
    answers = []
    for reader, _ in clients:
        try:
            answers.append(await reader.read(-1))
        except ConnectionResetError:
            answers.append(b"")
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 503"] * 2 + [b""] * 4
    for _, writer in clients:
        writer.close()
    await eventually(lambda: world.worker._listener.room() == 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["length", "chunks"])
async def test_a_long_body_has_a_minimum_rate(
    kind: str, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only bytes that have arrived extend the deadline, not the announced length."""
    monkeypatch.setattr(transport, "_SLOWEST_BYTES_PER_SECOND", 1000.0)
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    framing = (
        b"Content-Length: 60000000\r\n\r\n{" if kind == "length" else b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
    )
    writer.write(HEAD + framing)
    world.sent += 1
    async with asyncio.timeout(3):
        assert (await _answer(reader))[0] == 408
    writer.close()
