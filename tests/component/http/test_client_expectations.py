"""What clients expect of a server: forms of targets, versions, limits of heads, headers of streams, real clients."""

import asyncio
import json
from typing import Any

import aiohttp
import openai
import pytest

from pdx_api.names import Order
from pdx_api.settings.gateway import CORS
from pdx_proxy.http.downstream.fallback import AiohttpExchange
from pdx_proxy.http.downstream.http1 import Http1Connection
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, request_of

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
JSON = b"Content-Type: application/json\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _open(world: World) -> Streams:
    return await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer with a Content-Length."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split()[1]), fields, await reader.readexactly(int(fields["content-length"]))


async def _get(world: World, head: str) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await _open(world)
    writer.write(f"{head}\r\nHost: x\r\n\r\n".encode())
    found = await _answer(reader)
    writer.close()
    return found


def _served_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The server of each request from here on."""
    served: list[str] = []
    fast: Any = Http1Connection._serve
    fallback: Any = AiohttpExchange.__init__

    async def serve(self: Http1Connection) -> None:
        served.append("fast")
        await fast(self)

    def init(self: AiohttpExchange, *args: Any) -> None:
        served.append("fallback")
        fallback(self, *args)

    monkeypatch.setattr(Http1Connection, "_serve", serve)
    monkeypatch.setattr(AiohttpExchange, "__init__", init)
    return served


OTHERS = {
    "get": HEALTH,
    "query": request_of(Shape().body("other"), "/v1/completions?beta=true"),
    "http-1.0": request_of(Shape().body("other"), version="1.0", head="Connection: keep-alive\r\n"),
    "chunks": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    + JSON
    + b"\r\n"
    + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (json.dumps(Shape().body("other")).encode(), b"")),
    "not-found": b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    "upgrade": request_of(Shape().body("other"), head="Connection: Upgrade\r\nUpgrade: h2c\r\n"),
}


@pytest.mark.parametrize("name", OTHERS)
async def test_a_connection_returns_to_the_fast_path(
    name: str, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    served = _served_by(monkeypatch)
    reader, writer = await _open(world)
    hot = request_of(Shape().body("hot"))
    for data in (hot, OTHERS[name], OTHERS[name], hot[:30], hot[30:], OTHERS[name], hot):
        writer.write(data)
        if data == hot[:30]:
            await asyncio.sleep(0.02)  # it arrives by itself
            continue
        await _answer(reader)
    writer.close()
    assert served == ["fast", "fallback", "fallback", "fast", "fallback", "fast"]
    world.sent = sum((await world.outcomes()).values())


async def test_a_connection_does_not_return_within_a_request(make_world: MakeWorld) -> None:
    """A part of a request may look like the begin of another one."""
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    smuggled = request_of(Shape().body("smuggled"))
    writer.write(HEALTH + b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ")
    assert (await _answer(reader))[0] == 200
    writer.write(smuggled.replace(b"\r\n", b"\r\nX-B: ", 1))
    status, _, body = await _answer(reader)
    assert (status, body) == (200, b""), "it is the header X-A of a GET"
    assert await world.outcomes() == {}
    writer.close()


async def test_returned_connections_count_and_close(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    found = world.worker._listener
    streams = [await _open(world) for _ in range(3)]
    for reader, writer in streams:
        for data in (HEALTH, request_of(Shape().body())):
            writer.write(data)
            await _answer(reader)
    world.sent += 3
    assert (len(found._connections), len(found._fallback._connections), len(found._fallback.open)) == (3, 0, 0)
    await found.close(0.0)
    await found.finish(5.0)
    assert [await reader.read() for reader, _ in streams] == [b""] * 3
    for _, writer in streams:
        writer.close()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/completions?api-version=1",
        "/v1/%63ompletions",
        "/v1%2Fcompletions",
        "http://elsewhere.example/v1/completions",
        "https://elsewhere.example:1/v1/%63ompletions?a=b",
        "/v1/completions#a",
    ],
)
async def test_forms_of_targets(target: str, make_world: MakeWorld) -> None:
    """As uvicorn: and engines get the plain path."""
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await world.raw(Shape().body(), target)
    status, _, body = await _answer(reader)
    assert (status, json.loads(body)["choices"][0]["text"]) == (200, Shape().expected())
    writer.close()
    assert await world.outcomes() == {"split": 1}


@pytest.mark.parametrize(
    ("head", "location"),
    [
        ("GET /v1/models/ HTTP/1.1", "/v1/models"),
        ("GET /v1/models///?a=%2F HTTP/1.1", "/v1/models?a=%2f"),
        ("POST /v1/completions/ HTTP/1.1", "/v1/completions"),
        ("GET /v1/models/sim/ HTTP/1.1", "/v1/models/sim"),
        ("GET http://x/health/ HTTP/1.1", "/health"),
    ],
)
async def test_a_trailing_slash_is_redirected(head: str, location: str, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    status, fields, body = await _get(world, head)
    assert (status, fields["location"], body) == (307, location, b"")


async def test_a_client_follows_the_redirect(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    reply = await world.post("/v1/completions/?a=b", Shape().body())
    assert (reply.status, reply.text) == (200, Shape().expected())
    client = openai.AsyncOpenAI(base_url=f"{world.url}/v1/models/..//", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError):
        await client.models.list()
    await client.close()


@pytest.mark.parametrize("keep", [True, False])
async def test_http_1_0_keeps_a_connection_that_both_keep(keep: bool, make_world: MakeWorld) -> None:
    """`ab -k`, byte for byte: without the header in the answer it reads until the connection ends."""
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    more = "Connection: Keep-Alive\r\n" if keep else ""
    accept = "User-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n"
    health = f"GET /health HTTP/1.0\r\n{more}Host: x\r\n{accept}".encode()
    for data in (health, request_of(Shape().body(), version="1.0", head=more), health):
        writer.write(data)
        status, fields, _ = await _answer(reader)
        assert (status, fields["connection"]) == (200, "keep-alive" if keep else "close")
        if not keep:
            break
    world.sent += keep
    if not keep:
        assert await reader.read() == b""
    writer.close()


async def test_a_stream_of_http_1_0_ends_with_its_connection(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await world.raw(Shape(stream=True).body(), version="1.0", head="Connection: keep-alive\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"\r\nconnection: close\r\n" in head.lower()
    assert b"chunked" not in head.lower()
    assert body.endswith(b"data: [DONE]\n\n")
    writer.close()


async def test_every_answer_has_a_date(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    for path in ("/health", "/ready", "/v1/models", "/nothing", "/v1/completions", "/version", "/v1/models/"):
        _, fields, _ = await _get(world, f"GET {path} HTTP/1.1")
        assert fields["date"].endswith("gmt"), path
    world.sent += 1
    reply = await world.complete(Shape(stream=True))
    assert reply.headers["date"]


TOO_LARGE = {
    "header": b"X-A: " + b"x" * 9000 + b"\r\n",
    "headers": b"".join(b"X-%d: y\r\n" % number for number in range(130)),
}


@pytest.mark.parametrize("name", [*TOO_LARGE, "target"])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "fallback"])
async def test_a_head_that_is_too_large_is_431(name: str, fast: bool, make_world: MakeWorld) -> None:
    """Also where the fast path reads it first, and where both paths count differently without a common limit."""
    world = await make_world(Order.PREFILL_FIRST)
    path = "/v1/completions" if fast else "/v1/completions?"
    if name == "target":
        path += "?" * fast + "a" * 9000
    reader, writer = await _open(world)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n".encode()
    writer.write(head + JSON + TOO_LARGE.get(name, b"") + b"\r\n{}")
    status, fields, body = await _answer(reader)
    assert (status, fields["connection"]) == (431, "close")
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == (431, "Request Header Fields Too Large")
    assert await reader.read() == b""
    writer.close()


async def test_a_head_within_the_limits_is_served(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    headers = {f"X-{number}": "y" for number in range(110)}
    assert (await world.complete(headers=headers)).status == 200
    assert (await world.complete(headers={"Authorization": "Bearer " + "k" * 7000})).status == 200


async def test_proxies_do_not_buffer_streams(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    for stream in (False, True):
        for chat in (False, True):
            reply = await world.complete(Shape(chat, stream))
            assert reply.headers.get("x-accel-buffering") == ("no" if stream else None)
    reader, writer = await world.raw(Shape(stream=True).body(), version="1.0")
    assert b"\r\nx-accel-buffering: no\r\n" in await reader.read()
    writer.close()
    reply = await world.complete(Shape(stream=True), max_tokens="x")
    assert (reply.status, reply.headers.get("x-accel-buffering")) == (400, None)


CHAT = "https://chat.example.com"


async def test_pages_of_other_origins(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, cors=CORS((CHAT,)))
    name = "access-control-allow-origin"
    for stream in (False, True):
        reply = await world.complete(Shape(stream=stream), {"Origin": CHAT, "X-Request-Id": "mine"})
        assert (reply.status, reply.headers[name], reply.headers["vary"]) == (200, CHAT, "Origin")
        assert "X-Request-Id" in reply.headers["access-control-expose-headers"]
        reply = await world.complete(Shape(stream=stream), {"Origin": "https://evil.example"})
        assert (reply.status, reply.headers.get(name), reply.headers["vary"]) == (200, None, "Origin")
    for path, status in (("/v1/models", 200), ("/nothing", 404), ("/v1/completions", 405)):
        reply = await world.call("GET", f"{world.url}{path}", headers={"Origin": CHAT})
        assert (reply.status, reply.headers[name]) == (status, CHAT)
    preflight = {"Origin": CHAT, "Access-Control-Request-Method": "POST"}
    preflight["Access-Control-Request-Headers"] = "authorization,content-type"
    reply = await world.call("OPTIONS", f"{world.url}/v1/chat/completions", headers=preflight)
    assert (reply.status, reply.raw, reply.headers[name]) == (200, b"OK", CHAT)
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    reply = await world.call(
        "OPTIONS", f"{world.url}/v1/models", headers={**preflight, "Origin": "https://evil.example"}
    )
    assert (reply.status, reply.raw, reply.headers.get(name)) == (400, b"Disallowed CORS origin", None)


async def test_without_origins_nothing_is_allowed(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    headers = {"Origin": CHAT, "Access-Control-Request-Method": "POST"}
    reply = await world.call("OPTIONS", f"{world.url}/v1/completions", headers=headers)
    assert reply.status == 405
    reply = await world.complete(headers=headers)
    assert not [key for key in reply.headers if key.startswith("access-control")]


async def test_an_aiohttp_client_sends_a_head(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.head(f"{world.url}/v1/models") as answer:
                assert (answer.status, await answer.read()) == (200, b"")
                assert int(answer.headers["content-length"]) > 10


WEBSOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/responses", 426), ("/v1/messages", 426), ("/v1/models", 200), ("/nothing", 404)]
)
async def test_a_websocket_is_refused_so_that_agents_send_a_post(path: str, status: int, make_world: MakeWorld) -> None:
    """At any other status than 426, Codex tries the WebSocket again several times."""
    world = await make_world(Order.PREFILL_FIRST)
    reply = await world.call("GET", f"{world.url}{path}", headers=WEBSOCKET)
    assert reply.status == status
    assert (reply.headers.get("upgrade") == "HTTP/1.1") is (status == 426)
    assert (await world.complete()).status == 200


async def test_a_websocket_on_a_second_line_is_refused_too(make_world: MakeWorld) -> None:
    """Several lines of Upgrade are one list."""
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    writer.write(
        b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
        b"Upgrade: h2c\r\nUpgrade: websocket\r\n\r\n"
    )
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert answer.startswith(b"HTTP/1.1 426 ")
