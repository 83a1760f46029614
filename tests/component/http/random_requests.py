"""Random requests, made of right and wrong parts."""

import random
from typing import Final

from tests.component.http.hostile import COMPLETIONS, HOST, JSON

_LINES: Final = [
    b"Content-Length: 39\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5\r\n", b"content-length:39\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n",
    b"Connection: upgrade\r\n", b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Content-Encoding: gzip\r\n",
    b"Content-Encoding: identity\r\n", b"Content-Type: text/plain\r\n", b"Content-Type: application/json; x=y\r\n",
    b"Host: y\r\n", b"X-Request-Id: evil\r\n", b"traceparent: 00-a\r\n", b"Authorization: Bearer x\r\n",
    b"X: " + b"y" * 9000 + b"\r\n", b" folded\r\n", b"no colon\r\n", b": no name\r\n", b"X-A : b\r\n", b"\r\n",
]  # fmt: skip
_BYTES: Final = [b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b"\x7f", b"\x80", b"\xff", b"\x0b", b"{", b"0", b","]
_LINES_OF_REQUESTS: Final = [
    b"POST /v1/chat/completions HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.0\r\n", b"GET /v1/models HTTP/1.1\r\n",
    b"POST /v1/completions?x HTTP/1.1\r\n", b"POST //v1/completions HTTP/1.1\r\n", b"PUT /v1/completions HTTP/1.1\r\n",
    b"POST http://y/v1/completions HTTP/1.1\r\n", b"POST * HTTP/1.1\r\n", b"CONNECT y:1 HTTP/1.1\r\n",
 b"POST /v1/completions HTTP/9.9\r\n", b"POST /v1/completions\r\n",
]  # fmt: skip
_KEYS: Final = [
    b'"prompt"', b'"n"', b'"stream"', b'"max_tokens"', b'"vllm_xargs"', b'"request_id"', b'"kv_transfer_params"',
    rb'"kv_transfer_param\u0073"', rb'"vllm\u005fxargs"', rb'"req\u0075est_id"', b'"ec_transfer_params"', b'"echo"',
    b'""', rb'"\ud800"', b'"\xff"', b'"model"', b'"logprobs"', b'"truncate_prompt_tokens"', b'"best_of"',
]  # fmt: skip
_VALUES: Final = [
    b"null", b"true", b"1", b"2", b"-1", b"0.5", b"1e999", b"NaN", b"-Infinity", b'"a"', b'"evil"', b"[]", b"{}",
    b"[1,2,3]", b'["a","b"]', b'{"kv_transfer_params":{"x":1}}', rb'{"request\u005fid":"evil","a":[{}]}', b"01",
    b'{"x":' * 300 + b"1" + b"}" * 300,
    rb'"\ud83d"', rb'"\u0000"', b'"\xed\xa0\x80"', b"9" * 30, b'"' + b"x" * 70 + b'"',
]  # fmt: skip


def random_body(rng: random.Random) -> bytes:
    """An object of random members, some of them twice, sometimes no JSON at all."""
    members = [rng.choice(_KEYS) + b":" + rng.choice(_VALUES) for _ in range(rng.randrange(5))]
    members += [b'"prompt":"hello"', b'"max_tokens":2'] * rng.randrange(1, 2)
    rng.shuffle(members)
    body = b"{" + b",".join(members) + b"}"
    match rng.randrange(12):
        case 0:
            return body.decode("latin-1").encode("utf-16")
        case 1:
            return mutate_bytes(rng, body)
        case 2:
            return body[: rng.randrange(len(body))]
    return body


def random_chunks(rng: random.Random, body: bytes) -> bytes:
    """A body in chunks, mostly right."""
    framed = b""
    while body:
        size = rng.randrange(1, len(body) + 1)
        written = rng.choice([b"%x", b"%X", b"0%x"] * 4 + [b"+%x", b"0x%x", b" %x", b"%x ", b"%x;a=b", b"%xg"]) % size
        framed += written + b"\r\n" + body[:size] + (b"\r\n" if rng.random() < 0.97 else b"")
        body = body[size:]
    return framed + rng.choice([b"0\r\n\r\n"] * 5 + [b"0\r\nX-T: y\r\n\r\n", b"00\r\n\r\n", b"0\r\n", b"-0\r\n\r\n"])


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Put in, take out or replace a few bytes."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice([*_BYTES, b""]) + data[at + rng.randrange(3) :]
    return data


def random_request(rng: random.Random) -> bytes:
    """One request made of right and wrong parts."""
    line = COMPLETIONS if rng.random() < 0.8 else rng.choice(_LINES_OF_REQUESTS)
    lines = [HOST, JSON]
    body = random_body(rng)
    if rng.random() < 0.3:
        lines.append(b"Transfer-Encoding: chunked\r\n")
        body = random_chunks(rng, body)
    else:
        lines.append(b"Content-Length: %d\r\n" % len(body))
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(_LINES))
    head = line + b"".join(lines)
    if rng.random() < 0.15:
        head = mutate_bytes(rng, head)
    return head + b"\r\n" + body


def random_input(rng: random.Random) -> bytes:
    """What one connection carries: one to three requests, the last one's head with an end."""
    return b"".join(random_request(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))) + b"\r\n\r\n"
