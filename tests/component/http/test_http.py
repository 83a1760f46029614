"""The serving port as HTTP: the allow-list, versions, keep-alive, limits, and slow readers.

Every test runs twice: on the fast path, and with the fallback for all requests.
"""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Limits
from pdx_proxy.http.downstream import http1
from pdx_proxy.http.downstream.exchange import Exchange
from pdx_proxy.http.downstream.fallback import AiohttpExchange
from pdx_proxy.http.routes import ROUTES, Kind
from pdx_proxy.serving import gateway
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually, request_of

ADMINISTRATIVE = [
    "/metrics", "/load", "/ping", "/sim/state", "/sim/faults", "/sleep", "/wake_up", "/reset_prefix_cache", "/docs",
    "/openapi.json", "/v1/load_lora_adapter", "/collective_rpc", "/invocations", "/pdx/state", "/abort_requests", "/",
    "//v1/completions", "/v1/%2563ompletions", "/is_sleeping", "/pause", "/v1/load_lora_adapter/", "/v1/%6cogs",
    "http://x/metrics", "http://x", "/%2e%2e/metrics",
]  # fmt: skip

GETS = [path for path, (method, _) in ROUTES.items() if method == "GET"]

Exchanges = type[http1.Http1Connection] | type[AiohttpExchange]


@pytest.fixture(autouse=True, params=[http1.Http1Connection, AiohttpExchange], ids=["fast", "fallback"])
def exchanges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Exchanges:
    """The implementation that serves completions."""
    found: Exchanges = request.param
    if found is AiohttpExchange:
        monkeypatch.setattr("pdx_proxy.http.downstream.head._HOT_LINES", ())
    return found


async def test_administrative_paths_are_not_there(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    connections = [engine.counts.connections for engine in world.engines]
    for path in ADMINISTRATIVE:
        for method in ("GET", "POST", "PUT", "DELETE"):
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            status, _, body = await _bare(world, head.encode())
            assert (status, json.loads(body)) == (404, {"detail": "Not Found"}), (method, path)
    assert [engine.counts.connections for engine in world.engines] == connections


async def test_methods(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    for path, (allowed, _) in ROUTES.items():
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            if method != allowed:
                reply = await world.call(method, f"{world.url}{path}")
                assert (reply.status, reply.headers["allow"]) == (405, allowed.replace("GET", "GET, HEAD"))
                assert reply.json == {"detail": "Method Not Allowed"}


async def test_head_is_a_get_without_the_body(make_world: MakeWorld) -> None:
    """A client would take a body for the next answer."""
    world = await make_world(Order.PREFILL_FIRST)
    reader, writer = await _open(world)
    for path, status in (*[(path, 200) for path in GETS], ("/v1/models/none", 404), ("/v1/completions", 405)):
        heads = []
        for method in ("HEAD", "GET"):
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head.partition(b"date:")[0])
            if method == "GET":
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(size)
        assert heads[0] == heads[1]
        assert heads[0].split()[1] == str(status).encode()
    writer.close()
    world.sent += 2
    assert await world.outcomes() == {"whole": 2}


async def test_whole_requests(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    before = world.p.counts.requests.total()
    bodies: dict[str, Any] = {"/v1/embeddings": {"input": "a"}, "/tokenize": {"prompt": "abcdefgh"}}
    for path, body in bodies.items():
        reply = await world.post(path, body)
        direct = await world.call("POST", f"{world.d.url}{path}", body)
        assert (reply.status, reply.json) == (direct.status, direct.json)
    world.sent += 1
    reply = await world.call("GET", f"{world.url}/version?verbose=1")
    direct = await world.call("GET", f"{world.d.url}/version")
    assert (reply.status, reply.json) == (200, direct.json)
    assert (
        await world.post("/rerank", {})
    ).status == 404  # the error is the simulated engine's, which has no such path
    assert await world.outcomes() == {"whole": 3, "refused_by_engine": 1}
    assert world.p.counts.requests.total() == before


async def test_health_and_ready(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    world.d.faults.add(FaultKind.REFUSE)
    await world.start_gateway(warm=False)
    assert (await world.call("GET", f"{world.url}/health")).status == 200
    reply = await world.call("GET", f"{world.url}/ready")
    assert (reply.status, reply.error["type"]) == (503, "ServiceUnavailableError")
    reply = await world.complete()
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    world.d.faults.clear()
    await world.warm()
    assert (await world.call("GET", f"{world.url}/ready")).status == 200
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"unavailable": 1, "split": 1}


async def test_http_1_0(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order)
    reader, writer = await world.raw(shape.body(tokens=20), shape.path, version="1.0")
    answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    reply = (await world.direct(world.d, shape, tokens=20)).raw
    assert body.count(b"data: ") == reply.count(b"data: ")
    assert body.endswith(reply[-14:])


async def test_one_connection_serves_many(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    reader, writer = await _open(world)
    for number in range(5):
        shape = Shape(stream=bool(number % 2))
        writer.write(request_of(shape.body(f"prompt {number}")))
        world.sent += 1
        head, body = await _one_answer(reader)
        assert head.startswith(b"HTTP/1.1 200")
        assert _text(body) == shape.expected(f"prompt {number}")
    writer.close()


async def test_pipelined_requests_are_answered_in_order(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    reader, writer = await _open(world)
    world.sent += 3
    writer.write(b"".join(request_of(Shape(stream=n == 1).body(f"prompt {n}")) for n in range(3)))
    for number in range(3):
        _, body = await _one_answer(reader)
        assert _text(body) == Shape().expected(f"prompt {number}")
    writer.close()


async def test_expect_100_continue(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    request = request_of(Shape().body(), head="Expect: 100-continue\r\n")
    head, _, body = request.partition(b"\r\n\r\n")
    reader, writer = await _open(world)
    world.sent += 1
    writer.write(head + b"\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert _text((await _one_answer(reader))[1]) == Shape().expected()
    writer.close()


async def test_an_old_client_gets_no_interim_answer(make_world: MakeWorld) -> None:
    """It would take it for the final one (RFC 9110, 10.1.1)."""
    world = await make_world(Order.PREFILL_FIRST)
    request = request_of(Shape().body(), head="Expect: 100-continue\r\n").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    reader, writer = await _open(world)
    world.sent += 1
    writer.write(request)
    assert (await reader.readuntil(b"\r\n")).split(b" ")[1] == b"200"
    await reader.read()
    writer.close()


async def test_body_limit(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, limits=Limits(max_body_size=10_000))
    reply = await world.complete(prompt="x" * 20_000)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (413, 413, "Request Entity Too Large")
    assert reply.headers["connection"] == "close"
    assert (await world.complete(prompt="x" * 9_000)).status == 200
    assert await world.outcomes() == {"refused": 1, "split": 1}


async def test_large_prompt(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    big = {"max_model_len": 600_000, "num_blocks": 80_000, "prefill_token_seconds": 1e-8, "prefill_chunk": 1 << 20}
    world = await make_world(order, sim=big)
    prompt = "long " * 400_000
    reply = await world.complete(shape, prompt=prompt)
    assert (reply.status, reply.text) == (200, shape.expected(prompt))
    assert await world.outcomes() == {"split": 1}


LARGE = {"max_model_len": 80_000, "decode_token_seconds": 0.0}


async def test_large_answer(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, sim=LARGE)
    reply = await world.complete(tokens=60_000)
    assert len(reply.raw) > 200_000
    assert reply.text == Shape().expected(tokens=60_000)


async def test_a_slow_reader_slows_the_engine_down(
    exchanges: Exchanges, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that a client has not read wait at the engine, not in the gateway; then all of them arrive intact."""
    shape, tokens = Shape(stream=True), 60_000
    world = await make_world(Order.PREFILL_FIRST, sim=LARGE)
    written = 0
    write: Any = exchanges.write

    def count(self: Any, data: bytes) -> None:
        nonlocal written
        written += len(data)
        write(self, data)

    monkeypatch.setattr(exchanges, "write", count)
    reader, writer = await world.raw(shape.body(tokens=tokens))
    await reader.readuntil(b"\r\n\r\n")
    transport: Any = writer.transport
    transport.pause_reading()
    last = -1
    while written != last or not written:
        last = written
        await asyncio.sleep(0.3)
    assert world.d.counts.running_now or written < tokens * 150, "a part of the answer is still at the engine"
    transport.resume_reading()
    body = await _until_end(reader)
    assert len(body) > 1.2 * last, "most was still to come"
    assert _text(body) == shape.expected(tokens=tokens)
    writer.close()


@pytest.mark.parametrize("shape", [Shape(), Shape(chat=True, stream=True)], ids=["text", "chat-stream"])
async def test_idle_connections_that_engines_close(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    """Requests arrive while the engine closes idle connections: none fails."""
    world = await make_world(order, sim={"keepalive_seconds": 0.02})
    # A simulated engine, unlike uvicorn, may close a connection as idle in the moment in which it reads a request. A D
    # may have registered with P by then.
    world.allowed.stranded = not world.pull
    await asyncio.sleep(
        0.2
    )  # the first request gets new connections, since only a pair that has moved KV can settle one
    for number in range(30):
        assert (await world.complete(shape)).text == shape.expected()
        await asyncio.sleep(0.015 + (number % 10) * 0.001)
    outcomes = await world.outcomes()
    assert outcomes.keys() <= {"split", "whole"}
    assert outcomes["split"] >= 15, "most are sent again on another connection; a loss that shows late is retried whole"


async def _open(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)


async def _bare(world: World, request: bytes) -> tuple[int, bytes, bytes]:
    reader, writer = await _open(world)
    writer.write(request)
    head, body = await _one_answer(reader)
    writer.close()
    return int(head.split()[1]), head, body


async def _one_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if b"content-length" in lines:
        return head, await reader.readexactly(int(lines[b"content-length"]))
    return head, await _until_end(reader)


async def _until_end(reader: asyncio.StreamReader) -> bytes:
    """A chunked body, unchunked."""
    body = bytearray()
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return bytes(body)


def _text(body: bytes) -> str:
    if not body.startswith(b"data: "):
        return str(json.loads(body)["choices"][0]["text"])
    events = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    assert events[-1] == b"[DONE]"
    return "".join(json.loads(each)["choices"][0]["text"] for each in events[:-1])


def test_every_kind_of_route_is_named() -> None:
    assert {kind for _, kind in ROUTES.values()} == set(Kind)


async def test_an_error_amid_an_answer_is_a_cut(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world(Order.PREFILL_FIRST)

    async def fail(exchange: Exchange, *_: Any) -> None:
        exchange.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        raise ValueError

    monkeypatch.setattr(gateway, "relay", fail)
    reader, writer = await world.raw(Shape().body())
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := await reader.read(4096):
            received += piece
    assert received.count(b"HTTP/1.1 ") == 1, "no other answer follows"
    writer.close()
    assert await world.outcomes() == {"internal": 1}


async def test_a_disconnected_client_ends_the_relay(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim=LARGE)
    reader, writer = await world.raw(Shape(stream=True).body(tokens=20_000))
    await reader.readuntil(b"data: ")
    transport: Any = writer.transport
    transport.pause_reading()
    await asyncio.sleep(0.1)
    transport.abort()
    await eventually(lambda: not world.report["inFlight"]["requests"])
    assert await world.outcomes() == {"client_left": 1}
