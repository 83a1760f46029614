"""Hostile input: a corpus of requests, and their outcomes."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from pdx_proxy.http.downstream import head as request_head
from tests.component.harness import World

COMPLETIONS: Final = b"POST /v1/completions HTTP/1.1\r\n"
HOST: Final = b"Host: x\r\n"
JSON: Final = b"Content-Type: application/json\r\n"
HEAD: Final = COMPLETIONS + HOST + JSON
GOOD: Final = b'{"prompt":"hello there","max_tokens":2}'
HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
FORBIDDEN: Final = ("kv_transfer_params", "ec_transfer_params", "request_id")


def post(body: bytes, more: bytes = b"", head: bytes = HEAD) -> bytes:
    return head + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def framed(body: bytes, more: bytes = b"Transfer-Encoding: chunked\r\n") -> bytes:
    return HEAD + more + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


SMUGGLED: Final = b"POST /v1/completions HTTP/1.1\r\nHost: smuggled\r\n\r\n"

REFUSED: Final[dict[str, bytes]] = {
    "two-lengths": HEAD + b"Content-Length: 39\r\nContent-Length: 0\r\n\r\n" + GOOD,
    "length-list": HEAD + b"Content-Length: 39, 39\r\n\r\n" + GOOD,
    "length-and-chunks": framed(GOOD, b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
    "chunks-and-length": framed(GOOD, b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
    "te-folded": framed(GOOD, b"Transfer-Encoding:\r\n chunked\r\n"),
    "te-xchunked": framed(GOOD, b"Transfer-Encoding: xchunked\r\n"),
    "te-identity": framed(GOOD, b"Transfer-Encoding: identity\r\n"),
    "te-chunked-twice": framed(GOOD, b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    "te-not-last": framed(GOOD, b"Transfer-Encoding: chunked, identity\r\n"),
    "te-tab": framed(GOOD, b"Transfer-Encoding:\x0bchunked\r\n"),
    "te-space-before-colon": framed(GOOD, b"Transfer-Encoding : chunked\r\n"),
    "te-bare-lf": framed(GOOD, b"X: y\nTransfer-Encoding: chunked\r\n"),
    "no-host": post(GOOD, head=COMPLETIONS + JSON),
    "two-hosts": post(GOOD, b"Host: y\r\n"),
    "bare-lf": (HEAD + b"Content-Length: 39\r\n\r\n").replace(b"\r\n", b"\n") + GOOD,
    "bare-cr": (HEAD + b"Content-Length: 39\r\n\r\n").replace(b"\r\n", b"\r") + GOOD,
    "cr-in-value": post(GOOD, b"traceparent: a\rX-Evil: 1\r\n"),
    "lf-in-value": post(GOOD, b"traceparent: a\nX-Evil: 1\n\r\n"),
    "nul-in-value": post(GOOD, b"authorization: a\0b\r\n"),
    "control-in-value": post(GOOD, b"x-request-id: a\x01b\r\n"),
    "control-in-name": post(GOOD, b"X\x01: b\r\n"),
    "space-before-colon": HEAD + b"Content-Length : 39\r\n\r\n" + GOOD,
    "space-before-name": HEAD + b" Content-Length: 39\r\n\r\n" + GOOD,
    "no-name": HEAD + b": x\r\nContent-Length: 39\r\n\r\n" + GOOD,
    "length-negative": HEAD + b"Content-Length: -1\r\n\r\n" + GOOD,
    "length-plus": HEAD + b"Content-Length: +39\r\n\r\n" + GOOD,
    "length-hex": HEAD + b"Content-Length: 0x27\r\n\r\n" + GOOD,
    "length-underscore": HEAD + b"Content-Length: 3_9\r\n\r\n" + GOOD,
    "length-digits-elsewhere": HEAD + "Content-Length: ٣٩\r\n\r\n".encode() + GOOD,
    "length-superscript": HEAD + b"Content-Length: \xb2\r\n\r\n" + GOOD,
    "length-empty": HEAD + b"Content-Length:\r\n\r\n" + GOOD,
    "length-huge": HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\n" + GOOD,
    "length-digits": HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n" + GOOD,
    "chunk-negative": framed(GOOD).replace(b"\r\n27\r\n", b"\r\n-27\r\n"),
    "chunk-plus": framed(GOOD).replace(b"\r\n27\r\n", b"\r\n+27\r\n"),
    "chunk-0x": framed(GOOD).replace(b"\r\n27\r\n", b"\r\n0x27\r\n"),
    "chunk-huge": framed(GOOD).replace(b"\r\n27\r\n", b"\r\nffffffffffffffffff27\r\n"),
    "chunk-short": framed(GOOD).replace(b"\r\n27\r\n", b"\r\n26\r\n"),
    "chunk-bare-lf": framed(GOOD).replace(b"\r\n27\r\n", b"\r\n27\n"),
    "http-0.9": b"GET /health\r\n\r\n",
    "http-1.2": post(GOOD, head=HEAD.replace(b"HTTP/1.1", b"HTTP/1.2")),
    "http-2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "http-2.0": post(GOOD, head=HEAD.replace(b"HTTP/1.1", b"HTTP/2.0")),
    "http-3.7": post(GOOD, head=HEAD.replace(b"HTTP/1.1", b"HTTP/3.7")),
    "http-lower": post(GOOD, head=HEAD.replace(b"HTTP/1.1", b"http/1.1")),
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40 + b"\r\n\r\n",
    "method-lower": post(GOOD, head=HEAD.replace(b"POST", b"post")),
    "target-nul": post(GOOD, head=HEAD.replace(b"completions", b"completions\0")),
    "target-space": post(GOOD, head=HEAD.replace(b"completions", b"comple tions")),
    "utf-16": post(GOOD.decode().encode("utf-16")),
    "bom": post(b"\xef\xbb\xbf" + GOOD),
    "nan": post(b'{"prompt":"a","temperature":NaN}'),
    "latin-1": post(b'{"prompt":"\xe9t\xe9"}'),
    "overlong": post(b'{"prompt":"\xc0\xaf"}'),
    "surrogate-bytes": post(b'{"prompt":"\xed\xa0\x80"}'),
    "deep": post(b'{"prompt":"a","x":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "deep-objects": post(b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "unclosed": post(b"[" * 100_000),
    "no-json": post(b"hello"),
    "nothing": post(b""),
    "after-the-object": post(GOOD + b"{}"),
    "comment": post(GOOD[:-1] + b"/* x */}"),
    "trailing-comma": post(GOOD[:-1] + b",}"),
    "single-quotes": post(b"{'prompt':'a'}"),
    "control-in-text": post(b'{"prompt":"a\nb"}'),
    "form": post(b"prompt=a", head=COMPLETIONS + HOST + b"Content-Type: application/x-www-form-urlencoded\r\n"),
    "not-gzip": post(GOOD, b"Content-Encoding: gzip\r\n"),
}
"""Each gets one 4xx, and no engine hears of it."""

SERVED: Final[dict[str, bytes]] = {
    "plain": post(GOOD),
    "chunked": framed(GOOD),
    "chunk-extension": framed(GOOD).replace(b"\r\n27\r\n", b"\r\n27;a=b\r\n"),
    "chunk-zeros": framed(GOOD).replace(b"\r\n27\r\n", b"\r\n0027\r\n"),
    "trailer": framed(GOOD)[:-2] + b"X-Request-Id: evil\r\nContent-Length: 3\r\n\r\n",
    "te-any-case": framed(GOOD, b"TRANSFER-ENCODING: Chunked\r\n"),
    "length-zeros": HEAD + b"Content-Length: 00039\r\n\r\n" + GOOD,
    "two-spaces": post(GOOD, head=HEAD.replace(b"POST ", b"POST  ")),
    "absolute-form": post(GOOD, head=HEAD.replace(b"/v1", b"http://elsewhere.example/v1")),
    "encoded-path": post(GOOD, head=HEAD.replace(b"/v1/c", b"/v1%2F%63")),
    "fragment": post(GOOD, head=HEAD.replace(b"completions ", b"completions#a ")),
    "query": post(GOOD, head=HEAD.replace(b"completions ", b"completions?a=/health&b=%00 ")),
    "upgrade": post(GOOD, b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"),
    "websocket": post(GOOD, b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n"),
    "other-hosts": post(GOOD, b"X-Forwarded-Host: evil\r\nForwarded: host=evil\r\n"),
    "internal-headers": post(GOOD, b"X-data-parallel-rank: 1\r\nX-Request-Id: evil\r\nX-Internal: evil\r\n"),
    "hop-by-hop": post(GOOD, b"Connection: authorization, content-length\r\nKeep-Alive: x\r\nTE: trailers\r\n"),
    "odd-values": post(GOOD, b"authorization: \xff\xfe\r\ntracestate: \xe2\x80\xa8\r\n"),
    "expect-other": post(GOOD, b"Expect: the-unexpected\r\n"),
    "expect-any-case": post(GOOD, b"Expect: 100-Continue\r\n"),
    "kv": post(b'{"prompt":"a","kv_transfer_params":{"evil":1}}'),
    "kv-escaped": post(rb'{"prompt":"a","kv_transfer_params":{"evil":1}}'),
    "kv-twice": post(b'{"kv_transfer_params":{"evil":1},"prompt":"a","kv_transfer_params":null}'),
    "kv-twice-escaped": post(rb'{"kv_transfer_params":null,"prompt":"a","kv\u005ftransfer\u005Fparams":{"evil":1}}'),
    "all-escaped": post(rb'{"prompt":"a","\u0072\u0065\u0071\u0075\u0065\u0073\u0074\u005f\u0069\u0064":"evil"}'),
    "xargs-hidden": post(rb'{"prompt":"a","vllm_x\u0061rgs":{"kv_transfer\u005fparams":{"evil":1},"a":1}}'),
    "xargs-twice": post(b'{"prompt":"a","vllm_xargs":{"request_id":"x","request_id":"evil"},"vllm_xargs":{}}'),
    "xargs-large": post(b'{"prompt":"a","vllm_xargs":{"request_id":"evil","x":' + b"9" * 40 + b"}}"),
    "xargs-deep": post(b'{"prompt":"a","vllm_xargs":{"x":' + b"[" * 200 + b"]" * 200 + b"}}"),
    "xargs-no-object": post(b'{"prompt":"a","vllm_xargs":[{"request_id":"evil"}]}'),
    "whole": post(b'{"prompt":"a","n":2,"kv_transfer_params":{"evil":1},"ec_transfer_params":{"evil":1}}'),
    "prompt-twice": post(b'{"prompt":["x","y"],"n":3,"prompt":"hello","n":1}'),
    "lone-surrogate": post(rb'{"prompt":"\ud800"}'),
    "huge-number": post(b'{"prompt":"a","seed":1' + b"0" * 400 + b"}"),
    "huge-exponent": post(b'{"prompt":"a","frequency_penalty":1e999}'),
    "answer-only": post(b'{"prompt":"a","logprobs":1e999}'),
    "nul-in-key": post(rb'{"prompt":"a","kv_transfer_params\u0000":{"x":1}}'),
    "case": post(b'{"prompt":"a","KV_TRANSFER_PARAMS":{"x":1}}'),
}
"""Each gets an answer of an engine or one 400, and no engine sees what is none of the client's business."""

OTHERS: Final[dict[str, tuple[bytes, list[int]]]] = {
    "absolute-form-admin": (b"GET http://elsewhere.example/metrics HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "absolute-form-health": (b"GET http://elsewhere.example/health?a HTTP/1.1\r\nHost: x\r\n\r\n", [200]),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "connect": (b"CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n", [404]),
    "trace": (b"TRACE /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", [405]),
    "admin": (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "dot-segments": (b"GET /v1/../health HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "encoded": (b"GET /%68ealth HTTP/1.1\r\nHost: x\r\n\r\n", [200]),
    "encoded-twice": (b"GET /%2568ealth HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "encoded-nonsense": (b"GET /v1/models/%ff%00%zz HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "redirect-elsewhere": (b"GET //evil.example/v1/models/ HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "redirect": (b"GET /v1/models///?%ff%0d%0a HTTP/1.1\r\nHost: x\r\n\r\n", [307]),
    "get-with-smuggled-body": (
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED + HEALTH,
        [200, 200],
    ),
    "smuggled-behind-refused": (post(SMUGGLED) + HEALTH, [400, 200]),
    "blank-lines-before": (b"\r\n\r\n" + HEALTH, [200]),
    "http-1.0-kept": (HEALTH.replace(b"1.1", b"1.0"), [200]),
}
"""What is answered, by the statuses that it gets; engines hear of nothing."""


@dataclass(frozen=True)
class Outcome:
    """What a client got for its bytes."""

    statuses: tuple[int, ...]
    bodies: tuple[bytes, ...]
    closed: bool

    def agrees(self, other: "Outcome", data: bytes) -> bool:
        """Whether the two servers gave the same answers, except for IDs and times.

        aiohttp forgets the requests before one that is no HTTP when all have come at once, and answers that one alone;
        what comes behind a request that closes the connection it refuses, and the lane does not read.
        """
        if self.closed is other.closed and self._stable == other._stable:
            return True
        no_http = ((400,), (431,))
        fast_path_ends = self.closed and (self.statuses[-1:] in no_http or b"close" in data.lower())
        return fast_path_ends and other.closed and other.statuses in no_http

    @property
    def _stable(self) -> list[tuple[int, object]]:
        return list(zip(self.statuses, map(_stable, self.bodies), strict=True))


def _stable(body: bytes) -> object:
    try:
        document = json.loads(body)
    except ValueError:
        return body.count(b"data: ")
    if "choices" in document:
        return [choice.get("text") for choice in document["choices"]]
    return document if {"error", "detail"} & document.keys() else sorted(document)


def read_answers(raw: bytes) -> tuple[list[int], list[bytes], bytes]:
    """Statuses and bodies of whole answers, and what is left over."""
    statuses: list[int] = []
    bodies: list[bytes] = []
    while raw:
        head, end, rest = raw.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        if not end or not lines[0].startswith(b"http/1.1 "):
            break
        status = int(lines[0].split()[1])
        fields = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
        if b"transfer-encoding" in fields:
            body, rest = _unchunk(rest)
        else:  # until the end, for a client of HTTP/1.0
            size = 0 if status == 100 else int(fields.get(b"content-length", len(rest)))
            body, rest = rest[:size], rest[size:]
        if status != 100:
            statuses.append(status)
            bodies.append(body)
        raw = rest
    return statuses, bodies, raw


def _unchunk(raw: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line, 16)
        body, raw = body + raw[:size], raw[size + 2 :]
        if not size:
            return body, raw


async def exchange_all(world: World, inputs: list[bytes], *, fast: bool) -> list[Outcome]:
    """Send each input over a connection of its own, to the fast path or the fallback, and read to the end."""
    hot = request_head._HOT_LINES
    if not fast:
        request_head._HOT_LINES = ()  # type: ignore[misc]
    try:
        return await _exchange_all(world, inputs)
    finally:
        request_head._HOT_LINES = hot  # type: ignore[misc]


async def _exchange_all(world: World, inputs: list[bytes]) -> list[Outcome]:
    received = [bytearray() for _ in inputs]
    closed = [False for _ in inputs]
    writers: list[asyncio.StreamWriter] = []

    async def read(number: int, reader: asyncio.StreamReader) -> None:
        try:
            while piece := await reader.read(1 << 16):
                received[number] += piece
        except ConnectionError:
            pass
        closed[number] = True

    readers: list[asyncio.Task[None]] = []
    for number, data in enumerate(inputs):
        reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
        writers.append(writer)
        readers.append(asyncio.create_task(read(number, reader)))
        writer.write(data)
    await _quiet(world, received)
    for task, writer in zip(readers, writers, strict=True):
        writer.close()
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    outcomes = []
    for number in range(len(inputs)):
        statuses, bodies, rest = read_answers(bytes(received[number]))
        assert not rest, (inputs[number], rest)
        outcomes.append(Outcome(tuple(statuses), tuple(bodies), closed[number]))
    return outcomes


_ROUNDS: Final = 10
"""Turns of the event loop between two looks: in 10 ms of a busy machine there may be one, and an answer takes more."""


async def _quiet(world: World, received: list[bytearray]) -> None:
    """Wait until nothing has been answered for three looks in a row and no answer is being made."""
    calm, last = 0, -1
    async with asyncio.timeout(10):
        while calm < 3:
            await asyncio.sleep(0.01)
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            now = sum(map(len, received))
            busy = any(engine.counts.running_now or engine.counts.waiting_now for engine in world.engines)
            calm = calm + 1 if now == last and not busy else 0
            last = now


class _Members(list[tuple[str, Any]]):
    """An object's members as they are written."""


def forbidden_in(raw: bytes, *, split: bool) -> list[str]:
    """What an engine must not be sent, found by a reader that keeps every member of every object.

    A leg of a split request has the gateway's own kv_transfer_params, once.
    """

    members: _Members = json.loads(raw, object_pairs_hook=_Members)
    names = [name for name, _ in members]
    extra = [name for key, value in members if key == "vllm_xargs" and isinstance(value, _Members) for name, _ in value]
    wrong = [f"{name} twice" for name in set(names) if names.count(name) > 1]
    wrong += [name for name in FORBIDDEN if name in names and not (split and name == "kv_transfer_params")]
    return wrong + [f"vllm_xargs.{name}" for name in FORBIDDEN if name in extra]
