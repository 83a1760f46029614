"""What hostile clients do to a connection. One function is one behaviour; half of them have a valid key."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from tests.component.hostile.clients import KEY, PATHS, Behaviour, Peer, body_of

BEHAVIOURS: Final[list[Behaviour]] = []
_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
_LARGE: Final = 1 << 20


def _behaves(behaviour: Behaviour) -> Behaviour:
    BEHAVIOURS.append(behaviour)
    return behaviour


def _posts(make: Callable[[Peer, str], bytes]) -> Behaviour:
    """A behaviour that posts a body and reads what comes."""

    async def behave(peer: Peer) -> None:
        path = peer.rng.choice(PATHS)
        await peer.send(peer.post(make(peer, path), path=path))
        await peer.read()

    behave.__name__ = make.__name__
    return _behaves(behave)


def _right() -> bytes:
    return b"Authorization: Bearer " + KEY.encode() + b"\r\n"


@_behaves
async def head_slow(peer: Peer) -> None:
    await peer.drip(peer.head() + b"X: " + b"y" * 300, 0.02)


@_behaves
async def head_never(peer: Peer) -> None:
    await asyncio.sleep(8.0)


@_behaves
async def head_endless(peer: Peer) -> None:
    await peer.send(peer.head() + b"X: " + b"y" * _LARGE)


@_behaves
async def headers_many(peer: Peer) -> None:
    await peer.send(peer.head() + b"X-A: b\r\n" * 20_000)
    await peer.read()


@_behaves
async def headers_as_many_as_may_be(peer: Peer) -> None:
    body = body_of(PATHS[0])
    more = b"".join(b"x-%d: " % each + b"y" * 7000 + b"\r\n" for each in range(8))
    await peer.send(peer.post(body, more, PATHS[0]))
    await peer.read()


@_behaves
async def body_dripped(peer: Peer) -> None:
    await peer.send(peer.head(b"Content-Length: 60000\r\n") + b"\r\n")
    await peer.drip(body_of(PATHS[0], "x" * 300), 0.02)


@_behaves
async def body_declared_only(peer: Peer) -> None:
    await peer.send(peer.head(b"Content-Length: 67108864\r\n") + b"\r\n")
    await asyncio.sleep(6.0)


@_behaves
async def body_too_large(peer: Peer) -> None:
    await peer.send(peer.head(b"Content-Length: 999999999999\r\n") + b"\r\n" + b"x" * _LARGE)
    await peer.read()


@_behaves
async def chunks_of_one_byte(peer: Peer) -> None:
    await peer.send(peer.head(_CHUNKED) + b"\r\n" + b"1\r\n{\r\n" + b"1\r\n \r\n" * 60_000)
    await peer.read()


@_behaves
async def chunks_dripped(peer: Peer) -> None:
    await peer.send(peer.head(_CHUNKED) + b"\r\n")
    await peer.drip(b"1\r\n{\r\n" * 60, 0.02)


@_behaves
async def chunk_extensions(peer: Peer) -> None:
    await peer.send(peer.head(_CHUNKED) + b"\r\n" + (b"1;" + b"e" * 4000 + b"\r\n \r\n") * 200)
    await peer.read()


@_behaves
async def chunk_extension_endless(peer: Peer) -> None:
    await peer.send(peer.head(_CHUNKED) + b"\r\n5;" + b"e" * _LARGE)
    await peer.read()


@_behaves
async def trailers_endless(peer: Peer) -> None:
    body = body_of(PATHS[0])
    await peer.send(peer.head(_CHUNKED, PATHS[0]) + b"\r\n%x\r\n%b\r\n0\r\n" % (len(body), body))
    await peer.send(b"X-Trailer: " + b"t" * 100 + b"\r\n" * 1 + b"X-T: t\r\n" * 50_000)
    await peer.read()


@cache
def _bomb(kind: str) -> bytes:
    letters = b'{"prompt":"' + b"a" * (30 << 20) + b'"}'
    return gzip.compress(letters) if kind == "gzip" else zlib.compress(letters)


@_behaves
async def gzip_bomb(peer: Peer) -> None:
    kind = peer.rng.choice(("gzip", "deflate"))
    await peer.send(peer.post(_bomb(kind), b"Content-Encoding: " + kind.encode() + b"\r\n"))
    await peer.read()


@_behaves
async def gzip_bomb_without_a_key(peer: Peer) -> None:
    await peer.send(peer.post(_bomb("gzip"), b"Content-Encoding: gzip\r\n", key=b""))
    await peer.read()


@_behaves
async def gzip_of_gzip(peer: Peer) -> None:
    await peer.send(peer.post(gzip.compress(_bomb("gzip")), b"Content-Encoding: gzip, gzip\r\n"))
    await peer.read()


@_behaves
async def gzip_broken(peer: Peer) -> None:
    await peer.send(peer.post(_bomb("gzip")[:9000] + b"\xff" * 9000, b"Content-Encoding: gzip\r\n"))
    await peer.read()


@_behaves
async def encodings_odd(peer: Peer) -> None:
    odd = peer.rng.choice((b"br", b"zstd", b"identity", b"x-gzip", b"", b"gzip\t", b"\xff"))
    await peer.send(peer.post(body_of(PATHS[0]), b"Content-Encoding: " + odd + b"\r\n", PATHS[0]))
    await peer.read()


@_behaves
async def bytes_sent_ahead(peer: Peer) -> None:
    """Junk behind an open request."""
    body = body_of(PATHS[0], tokens=100, stream=True)
    await peer.send(peer.post(body, path=PATHS[0], key=_right()) + b"\x00junk" * 80_000)
    await peer.read()


@_behaves
async def bytes_ahead_of_a_refusal(peer: Peer) -> None:
    await peer.send(peer.post(b"{}", key=b"") + b"x" * 500_000)
    await peer.read()


@_behaves
async def pipelined(peer: Peer) -> None:
    path = peer.rng.choice(PATHS)
    await peer.send(peer.post(body_of(path), path=path) * 30)
    await peer.read()


@_behaves
async def pipelined_many_pages(peer: Peer) -> None:
    await peer.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 5_000)
    await peer.read()


@_behaves
async def pipelined_and_deaf(peer: Peer) -> None:
    peer.deaf()
    await peer.send((b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + _right() + b"\r\n") * 3_000)
    await asyncio.sleep(6.0)


@_behaves
async def leaves_in_head(peer: Peer) -> None:
    await peer.send(peer.head()[: peer.rng.randrange(1, 60)])


@_behaves
async def leaves_in_body(peer: Peer) -> None:
    data = peer.post(body_of(PATHS[0], "x" * 5000), path=PATHS[0])
    await peer.send(data[: -peer.rng.randrange(1, 4000)])
    await asyncio.sleep(peer.rng.uniform(0.0, 0.1))


@_behaves
async def leaves_at_once(peer: Peer) -> None:
    path = peer.rng.choice(PATHS)
    await peer.send(peer.post(body_of(path, "x" * 5000, 50), path=path, key=_right()))
    if peer.rng.random() < 0.5:
        peer.reset()


@_behaves
async def leaves_while_engines_work(peer: Peer) -> None:
    path = peer.rng.choice(PATHS)
    await peer.send(peer.post(body_of(path, "x" * 5000, 100, stream=peer.rng.random() < 0.5), path=path, key=_right()))
    await asyncio.sleep(peer.rng.expovariate(20.0))
    if peer.rng.random() < 0.5:
        peer.reset()


@_behaves
async def leaves_in_answer(peer: Peer) -> None:
    path = peer.rng.choice(PATHS)
    await peer.send(peer.post(body_of(path, tokens=200, stream=True), path=path, key=_right()))
    await peer.reader.read(peer.rng.randrange(1, 4000))


@_behaves
async def half_closes(peer: Peer) -> None:
    path = peer.rng.choice(PATHS)
    await peer.send(peer.post(body_of(path, tokens=20, stream=peer.rng.random() < 0.5), path=path))
    peer.writer.write_eof()
    await peer.read()


@_behaves
async def half_closes_in_head(peer: Peer) -> None:
    await peer.send(peer.head())
    peer.writer.write_eof()
    await asyncio.sleep(5.0)


@_behaves
async def half_closes_in_body(peer: Peer) -> None:
    await peer.send(peer.head(b"Content-Length: 1000\r\n") + b"\r\n{")
    peer.writer.write_eof()
    await asyncio.sleep(5.0)


@_behaves
async def reads_nothing(peer: Peer) -> None:
    peer.deaf()
    path = peer.rng.choice(PATHS)
    await peer.send(peer.post(body_of(path, tokens=3000, stream=True), path=path, key=_right()))
    await asyncio.sleep(7.0)


@_behaves
async def reads_slowly(peer: Peer) -> None:
    path = peer.rng.choice(PATHS)
    await peer.send(peer.post(body_of(path, tokens=300, stream=True), path=path, key=_right()))
    for _ in range(300):
        await peer.reader.read(20)
        await asyncio.sleep(0.02)


@_posts
def stop_of_a_mebibyte(peer: Peer, path: str) -> bytes:
    return body_of(path, stop=["s" * _LARGE], stop_sequences=["s" * 1000])


@_posts
def stops_many(peer: Peer, path: str) -> bytes:
    return body_of(path, stop=[f"s{each}" for each in range(90_000)])


@_posts
def names_that_look_like_limits(peer: Peer, path: str) -> bytes:
    return body_of(path)[:-1] + b',"x":"' + rb"\"max_" * 150_000 + b'"}'


@_posts
def limits_odd(peer: Peer, path: str) -> bytes:
    odd: Any = peer.rng.choice((-1, 0, 1e308, 10**30, "5", None, True, [], {}, 2**63, 1.5))
    return body_of(path, max_tokens=odd, max_completion_tokens=odd, max_output_tokens=odd, min_tokens=odd, n=odd)


@_posts
def deep(peer: Peer, path: str) -> bytes:
    depth = peer.rng.choice((240, 260, 5000, 200_000))
    return body_of(path)[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}"


@_posts
def deep_objects(peer: Peer, path: str) -> bytes:
    depth = peer.rng.choice((240, 5000, 100_000))
    return b'{"a":' * depth + b"1" + b"}" * depth


@_posts
def unclosed(peer: Peer, path: str) -> bytes:
    return peer.rng.choice((b"[", b"{", b'{"a":[')) * 100_000


@_posts
def many_keys(peer: Peer, path: str) -> bytes:
    return b"{" + b",".join(b'"k%d":%d' % (each, each) for each in range(60_000)) + b"}"


@_posts
def one_key_often(peer: Peer, path: str) -> bytes:
    return b'{"model":"sim"' + b',"prompt":"x"' * 60_000 + b"}"


@_posts
def many_arrays(peer: Peer, path: str) -> bytes:
    return body_of(path)[:-1] + b',"x":[' + b",".join([b"[]"] * 99_000) + b"]}"


@_posts
def numbers_long(peer: Peer, path: str) -> bytes:
    return body_of(path)[:-1] + b',"seed":' + b"9" * peer.rng.choice((400, 60_000, 500_000)) + b"}"


@_posts
def many_numbers(peer: Peer, path: str) -> bytes:
    return b'{"model":"sim","prompt":[' + b",".join([b"1e5"] * 150_000) + b"]}"


@_posts
def many_messages(peer: Peer, path: str) -> bytes:
    messages = [{"role": "user", "content": "a"}] * 9_000
    return json.dumps({"model": "sim", "messages": messages, "input": messages, "max_tokens": 1}).encode()


@_posts
def many_tools(peer: Peer, path: str) -> bytes:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    return body_of(path, tools=[tool] * 5_000)


@_posts
def names_escaped(peer: Peer, path: str) -> bytes:
    return body_of(path)[:-1] + b"".join(rb',"\u006bv_transfer_params%d":1' % each for each in range(900)) + b"}"


@_posts
def parameters_of_engines(peer: Peer, path: str) -> bytes:
    params = {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_host": "127.0.0.1", "remote_port": 1}
    return body_of(path, kv_transfer_params=params, vllm_xargs={"kv_transfer_params": params}, request_id="mine")


@_posts
def surrogates_and_nulls(peer: Peer, path: str) -> bytes:
    return peer.rng.choice(
        (rb'{"prompt":"\ud800\u0000"}', b"\xef\xbb\xbf{}", b'{"prompt":"\xff"}', b'{"a":NaN}', b"\x00")
    )


@_posts
def prompt_refused(peer: Peer, path: str) -> bytes:
    """Longer than the engines' context: all engines refuse it."""
    return body_of(path, "word " * 200_000)


@_posts
def types_wrong(peer: Peer, path: str) -> bytes:
    names = (
        "stream",
        "temperature",
        "stop",
        "messages",
        "prompt",
        "input",
        "tools",
        "system",
        "logprobs",
        "model",
        "n",
    )
    odd: tuple[Any, ...] = (None, [], {}, "", -1, 1e308, True, [[]], "x" * 1000, {"a": {"b": []}})
    return body_of(path, **{name: peer.rng.choice(odd) for name in peer.rng.sample(names, 4)})


@_posts
def another_model(peer: Peer, path: str) -> bytes:
    return body_of(path)[:-1] + b',"model":"' + peer.rng.choice((b"none", b"x" * 300_000, rb"\u0000", b"")) + b'"}'


@_behaves
async def grammar_invalid_in_a_message(peer: Peer) -> None:
    """vLLM wraps its own 400 in an error event."""
    schema = {"format": {"type": "json_schema", "schema": {"type": "foo"}}}
    body = body_of("/v1/messages", stream=True, output_config=schema)
    await peer.send(peer.post(body, path="/v1/messages", key=_right()))
    await peer.read()
