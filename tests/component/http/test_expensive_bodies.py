"""Bodies that cost more than their bytes: compressed, in tiny chunks, with endless trailers, or framed in two ways."""

import asyncio
import gzip
import hashlib
import json
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_api.settings.gateway import Keys
from pdx_proxy.config.settings import Limits
from pdx_proxy.http.downstream.boundary import FEW_CHUNKS, LEAST_CHUNK_BYTES
from pdx_proxy.http.downstream.inflation import check_ratio, inflate, inflater_of, window_of
from pdx_proxy.http.errors import RefusedError
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually

KEY = b"Authorization: Bearer secret\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BODY = json.dumps(Shape().body()).encode()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    file = tmp_path / "clients"
    file.write_text(f"sha256:{hashlib.sha256(b'secret').hexdigest()} alice\n")
    return Keys(clients=str(file))


async def _world(make_world: MakeWorld, keys: Keys, **more: Any) -> World:
    return await make_world(Order.PREFILL_FIRST, keys=keys, **more)


async def _answer(world: World, *pieces: bytes, counted: bool = True) -> bytes:
    """Send pieces and return everything until the connection ends."""
    world.sent += counted
    reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.01)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


def _chunks(data: bytes, size: int) -> bytes:
    """The chunks of a body, without its end."""
    return b"".join(
        b"%x\r\n%b\r\n" % (len(piece), piece)
        for piece in (data[begin : begin + size] for begin in range(0, len(data), size))
    )


def _padded(size: int) -> bytes:
    """A valid body of so many bytes."""
    body = json.dumps({**Shape().body(), "user": ""}).encode()
    return json.dumps({**Shape().body(), "user": "x" * (size - len(body))}).encode()


def _length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def _deflated(body: bytes) -> bytes:
    """Without the header of zlib, as some clients send it."""
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(body) + deflater.flush()


BOMB = gzip.compress(b"a" * (30 << 20))
UNAUTHORIZED = {
    "gzip": b"Content-Encoding: gzip\r\n" + _length(BOMB),
    "deflate": b"Content-Encoding: deflate\r\n" + _length(zlib.compress(os.urandom(8000))),
    "gzip-chunks": b"Content-Encoding: gzip\r\n" + CHUNKED + b"\r\n" + _chunks(BOMB, 1000),
    "gzip-expect": b"Content-Encoding: gzip\r\nExpect: 100-continue\r\n" + _length(BOMB),
    "large-chunks": CHUNKED + b"\r\n" + _chunks(b"x" * 50_000, 1000),
}


@pytest.mark.parametrize("name", UNAUTHORIZED)
async def test_nothing_is_inflated_before_authentication(
    name: str, keys: Keys, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await _world(make_world, keys)
    inflated: list[object] = []
    monkeypatch.setattr(zlib, "decompressobj", lambda **_: inflated.append(0))
    answer = await _answer(world, HEAD + UNAUTHORIZED[name][:4000])
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert not inflated
    assert await world.outcomes() == {"refused": 1}


async def test_what_follows_a_refusal_is_discarded_and_not_parsed(keys: Keys, make_world: MakeWorld) -> None:
    """A client that sends its whole body before it reads gets the answer, and its bytes cost nothing."""
    world = await _world(make_world, keys)
    world.sent += 1
    reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    writer.write(HEAD + CHUNKED + b"\r\n" + _chunks(b"x" * 1000, 1000))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
    listener = world.worker._listener
    assert listener is not None
    await eventually(lambda: not listener._fallback._connections, 5.0)
    assert any(connection._lingers for connection in listener._connections)
    for _ in range(20):
        writer.write(b"1\r\nx\r\n" * 10_000)
        await writer.drain()
    assert await asyncio.wait_for(reader.read(), 5) == b'{"error":"Unauthorized"}', "the gateway has ended its side"
    writer.close()
    await eventually(lambda: not listener._connections, 15.0)


COSTLY = {
    "of-1-byte": _chunks(b"x" * 3000, 1),
    "below-the-average": _chunks(b"x" * 32 * 2500, 32),
    "with-extensions": b"1;a=bcdef\r\nx\r\n" * 1500,
    "behind-larger-ones": _chunks(b"x" * 10_000, 1000) + _chunks(b"x" * 3000, 2),
    "endless-trailers": b"1\r\nx\r\n0\r\n" + b"a: %b\r\n" % (b"b" * 1000) * 20,
    "many-small-trailers": b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 5000,
}


@pytest.mark.parametrize("key", [KEY, b""], ids=["with-key", "without"])
@pytest.mark.parametrize("name", COSTLY)
async def test_costly_framing_is_refused(name: str, key: bytes, keys: Keys, make_world: MakeWorld) -> None:
    world = await _world(make_world, keys)
    for pieces in ((HEAD + key + CHUNKED + b"\r\n" + COSTLY[name],), (HEAD + key + CHUNKED + b"\r\n", COSTLY[name])):
        answer = await _answer(world, *pieces, counted=False)
        assert answer[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 401 ")
        assert key == b"" or answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"\r\nconnection: close\r\n" in answer.lower()
    outcomes = await world.outcomes()
    world.sent = sum(outcomes.values())
    assert set(outcomes) <= {"refused"}
    assert (await world.complete(headers={"Authorization": "Bearer secret"})).text == Shape().expected()


HONEST = {
    "few-tiny": (FEW_CHUNKS - 1, 5),
    "just-large-enough": (FEW_CHUNKS * 3, LEAST_CHUNK_BYTES),
    "lines": (FEW_CHUNKS * 2, 120),
    "kilobytes": (300, 1000),
}


@pytest.mark.parametrize("name", HONEST)
async def test_bodies_in_many_chunks_are_served(name: str, keys: Keys, make_world: MakeWorld) -> None:
    world = await _world(make_world, keys)
    count, size = HONEST[name]
    body = _padded(max(count * size, 1000)) if count * size > len(BODY) + 100 else BODY
    chunks = _chunks(body, size) + b"0\r\n\r\n"
    answer = await _answer(world, HEAD + KEY + CHUNKED + b"Connection: close\r\n\r\n" + chunks)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZip", gzip.compress), ("Deflate", _deflated)],
)
async def test_compressed_bodies_are_served(
    encoding: str, compress: Any, chunked: bool, keys: Keys, make_world: MakeWorld
) -> None:
    world = await _world(make_world, keys)
    data = compress(BODY)
    head = HEAD + KEY + b"Connection: close\r\nContent-Encoding: " + encoding.encode() + b"\r\n"
    sent = head + (CHUNKED + b"\r\n" + _chunks(data, 100) + b"0\r\n\r\n" if chunked else _length(data))
    answer = await _answer(world, sent[:200], sent[200:])
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert await world.outcomes() == {"split": 1}


@pytest.mark.parametrize("more", [-300, -1, 0, 1, 257, 1 << 20])
async def test_a_body_of_any_inflated_size_is_whole(more: int, keys: Keys, make_world: MakeWorld) -> None:
    """Also if a slice ends where the content does."""
    world = await _world(make_world, keys)
    data = gzip.compress(_padded((1 << 20) + more))
    head = HEAD + KEY + b"Connection: close\r\nContent-Encoding: gzip\r\n"
    assert (await _answer(world, head + _length(data))).startswith(b"HTTP/1.1 200 ")


BROKEN = {
    "no-gzip": ("gzip", BODY, 400),
    "cut-short": ("gzip", gzip.compress(BODY)[:-9], 400),
    "more-behind": ("gzip", gzip.compress(BODY) + b"more", 400),
    "brotli": ("br", BODY, 415),
    "zstd": ("zstd", BODY, 415),
    "two-codings": ("gzip, br", BODY, 415),
    "two-lines": ("gzip\r\nContent-Encoding: br", gzip.compress(BODY), 415),
    "identity-first": ("identity\r\nContent-Encoding: gzip", gzip.compress(BODY), 415),
    "nothing": ("deflate", b"", 400),
    "unknown": ("aws-chunked", BODY, 415),
    "too-large": ("gzip", gzip.compress(random.Random(0).randbytes(1 << 19) * 130, 1), 413),
    "ratio": ("gzip", BOMB, 413),
    "ratio-deflate": ("deflate", zlib.compress(b"a" * (30 << 20)), 413),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_compressed_bodies_are_refused(name: str, keys: Keys, make_world: MakeWorld) -> None:
    world = await _world(make_world, keys)
    encoding, data, status = BROKEN[name]
    sent = HEAD + KEY + b"Content-Encoding: " + encoding.encode() + b"\r\nConnection: close\r\n" + _length(data)
    answer = await _answer(world, sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (b"\r\naccept-encoding: gzip, deflate, identity\r\n" in answer) is (status == 415)
    assert (b"times its size" in answer) is name.startswith("ratio")
    assert await world.outcomes() == {"refused": 1}


@pytest.mark.parametrize("refused", [b"Content-Encoding: br\r\n", b"Content-Length: 99999999999\r\n"])
async def test_a_client_that_waits_is_refused_before_it_sends_its_body(
    refused: bytes, keys: Keys, make_world: MakeWorld
) -> None:
    """It gets no 100 before the refusal."""
    world = await _world(make_world, keys)
    length = b"" if b"Length" in refused else b"Content-Length: 100\r\n"
    answer = await _answer(world, HEAD + KEY + refused + length + b"Expect: 100-continue\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 415 ", b"HTTP/1.1 413 "))
    assert await world.outcomes() == {"refused": 1}


def test_a_body_that_inflates_far_is_refused_early() -> None:
    """60 MiB from 61 kB would take as long as 60 MiB that a client sends."""
    data, inflated = gzip.compress(b"a" * (60 << 20)), 0
    inflater = inflater_of(window_of("gzip"), data)
    received = len(data)
    while data and inflated <= 8 << 20:
        check_ratio(inflated, received)
        piece, data = inflate(inflater, data)
        inflated += len(piece)
    with pytest.raises(RefusedError):
        check_ratio(inflated, received)
    assert inflated < 10 << 20
    check_ratio(8 << 20, 1)
    check_ratio(60 << 20, 1 << 20)


async def test_inflated_bytes_count_as_buffered(keys: Keys, make_world: MakeWorld) -> None:
    world = await _world(make_world, keys, limits=Limits(max_buffered_bytes=4 << 20))
    usage = world.worker._admission.usage
    usage.add_buffered(1)  # another body: one alone is bounded by its size only
    sent = HEAD + KEY + b"Connection: close\r\nContent-Encoding: gzip\r\n" + _length(BOMB)
    assert (await _answer(world, sent)).startswith(b"HTTP/1.1 503 ")
    usage.add_buffered(-1)
    assert await world.outcomes() == {"shed": 1}


FRAMED_TWICE = {
    "empty": b"Transfer-Encoding:\r\n",
    "spaces": b"Transfer-Encoding:   \r\n",
    "identity": b"Transfer-Encoding: identity\r\n",
    "gzip": b"Transfer-Encoding: gzip\r\n",
    "unknown": b"Transfer-Encoding: chunke\r\n",
    "chunked": CHUNKED,
    "comma": b"Transfer-Encoding: ,\r\n",
}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", FRAMED_TWICE)
async def test_a_body_that_is_framed_in_two_ways_is_refused(
    name: str, before: bool, keys: Keys, make_world: MakeWorld
) -> None:
    world = await _world(make_world, keys)
    length = b"Content-Length: %d\r\n" % len(BODY)
    coding = FRAMED_TWICE[name]
    head = HEAD + KEY + (coding + length if before else length + coding)
    answer = await _answer(world, head + b"\r\n" + BODY + HEAD + KEY + _length(BODY), counted=False)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not await world.outcomes()


async def test_http_1_0_with_chunks_closes_the_connection(keys: Keys, make_world: MakeWorld) -> None:
    world = await _world(make_world, keys)
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + KEY + b"Connection: keep-alive\r\n"
    one = head + CHUNKED + b"\r\n" + _chunks(BODY, 1000) + b"0\r\n\r\n"
    answer = await _answer(world, one + one)
    assert answer.count(b"HTTP/1.1 200 ") + answer.count(b"HTTP/1.0 200 ") == 1
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_a_request_behind_one_for_an_upgrade_is_answered(
    protocol: bytes, keys: Keys, make_world: MakeWorld
) -> None:
    world = await _world(make_world, keys)
    upgrade = HEAD + KEY + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n" + _length(BODY)
    last = HEAD + KEY + b"Connection: close\r\n" + _length(BODY)
    world.sent += 1
    assert (await _answer(world, upgrade, last)).count(b"HTTP/1.1 200 ") == 2
    answer = await _answer(world, upgrade + last, counted=False)  # in one piece: both, or the connection ends
    assert 1 <= answer.count(b"HTTP/1.1 200 ") <= 2
    world.sent = sum((await world.outcomes()).values())


@pytest.mark.parametrize(
    "first", [b"GET /health HTTP/1.1\r\nHost: a", b"GET", b"POST /v1/completions HTTP/1.1\r\nX: y\r\n"]
)
async def test_a_head_that_does_not_end_is_not_kept(first: bytes, keys: Keys, make_world: MakeWorld) -> None:
    world = await _world(make_world, keys)
    reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    writer.write(first)
    listener = world.worker._listener
    assert listener is not None
    await eventually(lambda: listener._connections or listener._fallback._connections)
    await asyncio.sleep(0.1)
    now = asyncio.get_running_loop().time()
    for seconds in (0, 40, 80):
        listener._fallback.sweep(now + seconds, 60.0)
        for connection in list(listener._connections):
            connection.sweep(now + seconds)
        await asyncio.sleep(0.02)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 40")
    writer.close()


async def _open_with_bytes_ahead(world: World, ahead: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request that is served for a while, and bytes behind it."""
    reader, writer = await world.raw(Shape().body(tokens=150))
    await eventually(lambda: world.d.counts.running_now)
    writer.write(ahead)
    return reader, writer


@pytest.mark.parametrize("size", [1000, 60_000, 400_000])
async def test_bytes_ahead_count_as_buffered(size: int, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d={"decode_token_seconds": 0.01})
    usage = world.worker._admission.usage
    await eventually(lambda: not usage.buffered)
    _, writer = await _open_with_bytes_ahead(world, b"x" * size)
    await eventually(lambda: usage.buffered >= min(size, 64 * 1024))
    assert usage.buffered <= 330_000, "what is read at once, and what is kept"
    writer.close()
    await eventually(lambda: not usage.buffered)


async def test_bytes_ahead_that_are_refused_end_the_connection(make_world: MakeWorld) -> None:
    world = await make_world(
        Order.PREFILL_FIRST, d={"decode_token_seconds": 0.01}, limits=Limits(max_buffered_bytes=50_000)
    )
    usage = world.worker._admission.usage
    usage.add_buffered(40_000)
    reader, writer = await _open_with_bytes_ahead(world, b"x" * 30_000)
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    usage.add_buffered(-40_000)
    writer.close()
