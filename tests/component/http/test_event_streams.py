"""Event streams of engines: comments, line ends, other APIs' events, and answers without an end."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from pdx_api.logs import TextFormatter
from pdx_api.names import Order
from tests.component.harness import Reply, World
from tests.component.http.scripted import DONE, LAST, STREAM, TOKEN, Script, chunk, scripted

COMMENT = b": keep-alive\n\n"
GOOD = Script(STREAM + chunk(TOKEN) + chunk(DONE) + LAST)
MESSAGES, RESPONSES, COMPLETIONS = "/v1/messages", "/v1/responses", "/v1/completions"
CREATED = (
    b'event: response.created\ndata: {"response":{"error":null},"sequence_number":0,"type":"response.created"}\n\n'
    b'event: response.in_progress\ndata: {"response":{"error":null},"sequence_number":1,"type":"x"}\n\n'
)
ITEM = b'event: response.output_item.added\ndata: {"item":{},"output_index":0,"sequence_number":2,"type":"x"}\n\n'
START = b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant","content":[]}}\n\n'
BLOCK = b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n'
ANTHROPICS = b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"m"}}\n\n'


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(Order.PREFILL_FIRST)
    await made.start_engines([], [])
    yield made
    await made.close()


async def _stream(world: World, path: str = COMPLETIONS) -> Reply:
    return await world.post(path, {"prompt": "x", "stream": True, "scripted": True})


BEFORE_THE_PROOF = {
    "comments": (COMPLETIONS, COMMENT + COMMENT),
    "crlf-comments": (COMPLETIONS, COMMENT.replace(b"\n", b"\r\n")),
    "response-created": (RESPONSES, CREATED),
    "message-start": (MESSAGES, START),
    "message-error": (MESSAGES, START + ANTHROPICS),
    "response-failed": (
        RESPONSES,
        CREATED
        + b"event: response.failed\n"
        + b'data: {"type":"response.failed","response":{"error":{"code":"server_error"}}}\n\n',
    ),
}


@pytest.mark.parametrize("name", BEFORE_THE_PROOF)
async def test_what_proves_nothing_is_followed_by_another_attempt(name: str, world: World) -> None:
    """The engine dies behind it, or reports its failure: the client gets the answer of another attempt alone."""
    path, begin = BEFORE_THE_PROOF[name]
    async with scripted(world, Script(STREAM + chunk(begin), closes=True), GOOD) as engine:
        reply = await _stream(world, path)
        assert (reply.status, reply.raw) == (200, TOKEN + DONE)
        assert engine.requests == 2
        assert await world.outcomes() == {"whole": 1}


@pytest.mark.parametrize("step", [1, 2, 1000])
async def test_crlf_streams_are_relayed_as_they_come(step: int, world: World) -> None:
    """The first event reaches the client before the second one exists."""
    event = TOKEN.replace(b"\n", b"\r\n")
    data = STREAM + b"".join(chunk(event[begin : begin + step]) for begin in range(0, len(event), step))
    async with scripted(world, Script(data)):
        reader, writer = await world.raw({"prompt": "x", "stream": True, "scripted": True})
        async with asyncio.timeout(20):
            received = await reader.readuntil(b"null}]}\r\n\r\n" if step == 1000 else b"}")
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


SHAPES = {
    "completions": (COMPLETIONS, TOKEN),
    "messages": (MESSAGES, START + BLOCK),
    "responses": (RESPONSES, CREATED + ITEM),
}
ENDS = {
    "completions": b'data: {"error":{"message":"The engine was lost while it answered.","type":"InternalServerError",'
    b'"param":null,"code":500}}\n\ndata: [DONE]\n\n',
    "messages": b'event: error\ndata: {"type":"error","error":{"type":"api_error",'
    b'"message":"The engine was lost while it answered."}}\n\n',
    "responses": b'event: error\ndata: {"type":"error","code":"server_error",'
    b'"message":"The engine was lost while it answered.","param":null,"sequence_number":3}\n\n',
}


@pytest.mark.parametrize("lines", ["lf", "crlf"])
@pytest.mark.parametrize("name", SHAPES)
async def test_a_broken_stream_ends_in_its_own_shape(name: str, lines: str, world: World) -> None:
    path, begin = SHAPES[name]
    begin = begin.replace(b"\n", b"\r\n") if lines == "crlf" else begin
    async with scripted(world, Script(STREAM + chunk(begin), closes=True)):
        reply = await _stream(world, path)
        assert (reply.status, reply.cut) == (200, False)
        assert reply.raw == begin + ENDS[name]
        assert await world.outcomes() == {"broken": 1}


STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
COMPLETED = b'event: response.completed\ndata: {"response":{"error":null},"type":"response.completed"}\n\n'
TEXT = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"[DONE"}}\n\n'
EARLY = {
    "token": (COMPLETIONS, TOKEN, DONE),
    "message": (MESSAGES, START + BLOCK + TEXT, STOP),
    "response": (RESPONSES, CREATED + ITEM, COMPLETED),
}


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("pieces", [0, 1, 3, 7])
@pytest.mark.parametrize("name", EARLY)
async def test_only_a_stream_with_its_protocols_end_is_served(
    name: str, pieces: int, version: str, world: World
) -> None:
    """The client gets what the engine sends. Without any piece, the last event is missing."""
    path, begin, end = EARLY[name]
    size = -(-len(end) // max(1, pieces))
    parts = [end[at : at + size] for at in range(0, len(end), size)] if pieces else []
    then = b"".join(map(chunk, parts)) + LAST
    async with scripted(world, Script(STREAM + chunk(begin), then=then)) as engine:
        body = {"prompt": "x", "stream": True, "scripted": True}
        reader, writer = await world.raw(body, path, version, "Connection: close\r\n")
        await reader.readuntil(b"\r\n\r\n")
        engine.proceed.set()
        received = await reader.read(-1)
        assert received.endswith(then if version == "1.1" else begin + b"".join(parts))
        writer.close()
        assert await world.outcomes() == {"whole" if pieces else "broken": 1}


EMPTY = {
    "json": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\r\n",
    "stream": STREAM + LAST,
    "comment": STREAM + chunk(COMMENT) + LAST,
    "announcement": STREAM + chunk(CREATED) + LAST,
    "role": STREAM + chunk(START) + LAST,
}


@pytest.mark.parametrize("name", EMPTY)
async def test_an_empty_answer_is_followed_by_another_attempt(name: str, world: World) -> None:
    async with scripted(world, Script(EMPTY[name]), GOOD) as engine:
        reply = await _stream(world)
        assert (reply.status, reply.raw) == (200, TOKEN + DONE)
        assert engine.requests == 2
        assert await world.outcomes() == {"whole": 1}


BAD_GATEWAY = b"<html>\x1b[31m upstream connect error</html>"
NOT_JSON = {
    "html": (502, b"text/html", BAD_GATEWAY),
    "text": (503, b"text/plain", b"upstream connect error"),
    "problem": (500, b"application/problem+json", b'{"title":"upstream connect error"}'),
    "nothing": (504, b"", b""),
}


@pytest.mark.parametrize("path", [COMPLETIONS, MESSAGES])
@pytest.mark.parametrize("name", NOT_JSON)
async def test_a_5xx_that_is_not_json_keeps_its_status(
    name: str, path: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text is in the log alone: it may name what clients must not see."""
    status, kind, body = NOT_JSON[name]
    head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
    async with scripted(world, *[Script(head + body)] * 5):
        reply = await _stream(world, path)
        assert reply.status == status
        assert reply.headers["content-type"] == "application/json"
        assert str(status) in reply.error["message"]
        assert b"upstream" not in reply.raw
        await world.outcomes()
    form = TextFormatter("%(message)s")
    (line,) = (form.format(record) for record in caplog.records if record.getMessage() == "request failed")
    assert ("upstream connect error" in line) or (name == "nothing" and "no text" in line)
    assert "\x1b" not in line


HALF = chunk(TOKEN)[:-9]


@pytest.mark.parametrize("path", [COMPLETIONS, f"{COMPLETIONS}?x=1"], ids=["fast", "fallback"])
@pytest.mark.parametrize("tokens", [1, 40_000])
async def test_a_slow_reader_gets_all_of_a_stream_that_breaks(tokens: int, path: str, world: World) -> None:
    """The missing last chunk shows that the answer is incomplete, and a reset would lose what has not been read."""
    async with scripted(world, Script(STREAM + chunk(TOKEN) * tokens + HALF, closes=True)):
        reader, writer = await world.raw({"prompt": "x", "stream": True, "scripted": True}, path)
        await reader.readuntil(b"\r\n\r\n")
        received = 0
        await asyncio.sleep(0.3)
        while data := await reader.read(20_000):
            received, last = received + len(data), data
        assert received == len(chunk(TOKEN)) * tokens + len(HALF)
        assert last.endswith(HALF[-5:])
        writer.close()
        assert await world.outcomes() == {"broken": 1}


LONG = b"x" * (1200 << 10)
FAILED = b"HTTP/1.1 500 E\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "status-500": FAILED + chunk(LONG),
    "head": b"HTTP/1.1 200 OK\r\nx-long: " + LONG,
    "extension": STREAM + b"5;" + LONG,
    "extensions": STREAM + (b"1;" + b"x" * 1000 + b"\r\n:\r\n") * 1000,
    "trailers": STREAM + chunk(b":\n\n") + b"0\r\n" + b"x-a: b\r\n" * 100_000,
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_an_answer_without_an_end_is_bounded(name: str, world: World) -> None:
    """It is followed by another attempt."""
    async with scripted(world, Script(ENDLESS[name]), GOOD) as engine:
        reply = await _stream(world)
        assert (reply.status, reply.raw) == (200, TOKEN + DONE)
        assert engine.requests == 2
        assert await world.outcomes() == {"whole": 1}


async def test_a_long_event_is_relayed_before_its_end(world: World) -> None:
    async with scripted(world, Script(STREAM + chunk(LONG), then=LAST)) as engine:
        reader, writer = await world.raw({"prompt": "x", "stream": True, "scripted": True})
        async with asyncio.timeout(20):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(chunk(LONG))) == chunk(LONG)
        engine.proceed.set()
        assert await reader.readexactly(len(LAST)) == LAST
        writer.close()
        assert await world.outcomes() == {"broken": 1}


async def test_an_answer_has_one_date_and_nothing_of_the_engines_connection(world: World) -> None:
    body = json.dumps({"choices": []}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\n"
    data = head + b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with scripted(world, Script(data)):
        reader, writer = await world.raw({"prompt": "x", "scripted": True})
        received = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert received.count(b"\r\ndate: ") == 1
        assert b"1994" not in received
        assert b"x-hop" not in received
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(len(body))
        assert (await reader.readuntil(b"\r\n\r\n")).lower().count(b"\r\ndate: ") == 1
        writer.close()
