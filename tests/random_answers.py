"""What a broken or hostile engine may send as a page, an event, a header or a whole answer, from a seeded generator."""

import json
import random
from typing import Any, Final

_SCALARS: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 400, 499, 500, 503, 599, 600, 10**9, 2**63, 2**64, 10**30, 10**400),
    *(0.5, 1e308, -1e308, float("nan"), float("inf"), 5e-324, 499.5),
    *("", "x", "error", "400", "\ud800", "\x00\r\n", "\u202e", "y" * 3000, "{}", "null", "\x1b[31m"),
)
_NAMES: Final = (
    *("error", "type", "code", "message", "param", "response", "status", "id", "data", "object", "root", "version"),
    *("choices", "index", "delta", "text", "content", "finish_reason", "usage", "kv_transfer_params", "stop_reason"),
    *("sequence_number", "output", "created", "max_model_len", "permission", "prompt_tokens", "remote_block_ids"),
    *("remote_host", "remote_port", "do_remote_prefill", "__class__", "", "k" * 200),
)
_EVENTS: Final = (
    *(b"message", b"error", b"ping", b"message_start", b"content_block_delta", b"response.created", b"response.failed"),
    *(b"response.completed", b"response.incomplete", b"response.output_text.delta", b"", b"\xff", b"e" * 300),
)
_ENDS: Final = (b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n", b"", b"\n\r\n", b"\n\n\n")


def random_value(rng: random.Random, levels: int = 4) -> Any:
    """Return a value of JSON, with names that engines use and values that they do not."""
    kind = rng.randrange(10) if levels else 9
    if kind < 4:
        return {rng.choice(_NAMES): random_value(rng, levels - 1) for _ in range(rng.randrange(5))}
    if kind < 6:
        return [random_value(rng, levels - 1) for _ in range(rng.randrange(4))]
    return rng.choice(_SCALARS)


def random_json(rng: random.Random, usual: Any = None) -> bytes:
    """Return a document: `usual` with odd members, or any value; at times cut, deep, doubled or no text."""
    value = random_value(rng)
    if usual is not None and rng.random() < 0.7:
        value = _spoiled(usual, rng)
    document = json.dumps(value, separators=(",", ":")).encode()
    match rng.randrange(16):
        case 0:
            return document[: rng.randrange(len(document) + 1)]
        case 1:
            depth = rng.choice((31, 33, 200, 1500, 100_000))
            return b'{"error":' + b"[" * depth + b"]" * depth + b"}"
        case 2:
            return document * 2
        case 3:
            return document.replace(b'"', b"\xff")
        case 4:
            return rng.choice((b"\xef\xbb\xbf", b" " * 9000, b"\x00")) + document
        case 5:
            return rng.randbytes(rng.randrange(200))
        case 6:
            return b'{"data":[' + b",".join([document] * 300) + b"]}"
    return document


def _spoiled(value: Any, rng: random.Random) -> Any:
    """Return a value some of whose parts are others."""
    if rng.random() < 0.12:
        return random_value(rng, 2)
    if isinstance(value, dict):
        return {key: _spoiled(part, rng) for key, part in value.items() if rng.random() < 0.95}
    return [_spoiled(part, rng) for part in value] if isinstance(value, list) else value


def random_event(rng: random.Random) -> tuple[bytes, bytes]:
    """Return the name and the data of an event."""
    error = {"message": "m", "type": "internal_error", "code": rng.choice((400, 422, 500, 503))}
    usual = rng.choice(
        (
            {"error": error},
            {"type": "error", "error": error},
            {"type": "error", **error, "sequence_number": 3},
            {"type": "response.failed", "response": {"error": error}},
            {"choices": [{"index": 0, "text": "a", "finish_reason": None}]},
        )
    )
    return rng.choice(_EVENTS), random_json(rng, usual)


def random_stream(rng: random.Random) -> bytes:
    """Return the body of a stream: comments, announcements and events, with the ends that lines may have or not."""
    parts = []
    for _ in range(rng.choice((1, 3, 10, 10, 1500) if rng.random() < 0.05 else (1, 2, 3, 6))):
        name, data = random_event(rng)
        lines = (
            b":",
            b"data: [DONE]",
            b"retry: 1",
            b"data: " + data,
            b"event: " + name + b"\ndata: " + data,
            b"event: ping",
        )
        parts.append(rng.choice(lines) + rng.choice(_ENDS))
    return b"".join(parts)


def random_header(rng: random.Random) -> bytes:
    """Return the value of a Retry-After or a Date: a number, a date, or neither."""
    days = ("Mon", "Xyz", "", "Sunday")
    date = (
        f"{rng.choice(days)}, {rng.choice((0, 1, 31, 99, 10**20))} {rng.choice(('Nov', 'Feb', '13', ''))} "
        f"{rng.choice((0, 1, 1970, 2026, 9999, 10000, 10**30))} {rng.choice((0, 23, 99))}:{rng.choice((0, 59, 61))}:00 "
        f"{rng.choice(('GMT', '+0000', '-9999', '+99999999', 'EST', ''))}"
    )
    odd = ("", "-1", "1", "60", "1e9", "inf", "nan", "9" * 400, "0x1", "1;1", "\xb2", "\u0661", " 5 ", "5, 6", "\x00")
    return rng.choice((date, date, rng.choice(odd))).encode("utf-8")[: rng.choice((10_000, 10_000, 12))]


def random_wire(rng: random.Random) -> bytes:
    """Return an answer as bytes of HTTP/1: most of it right, some of it not."""
    body = rng.choice((random_stream, random_json))(rng)
    kind = rng.choice((b"text/event-stream", b"application/json", b"", b"text/event-stream; charset=x", b"\xff"))
    status = rng.choice(
        (b"200 OK",) * 6 + (b"100 C", b"103 E", b"101 S", b"204 N", b"304 N", b"400 B", b"503 U", b"999", b"0", b"x")
    )
    head = rng.choice((b"HTTP/1.1 ",) * 8 + (b"HTTP/1.0 ", b"HTTP/2 ", b"", b"\r\n")) + status + b"\r\n"
    for _ in range(rng.choice((0, 0, 1, 3, 2000))):
        head += rng.choice(
            (b"X: y\r\n", b"X:\r\n y\r\n", b"X : y\r\n", b"\x00: y\r\n", b"Retry-After: 1\r\n", b"X: y\n")
        )
    head += b"Content-Type: " + kind + b"\r\n"
    chunks = b"".join(_chunk(body[at : at + 500], rng) for at in range(0, len(body), 500))
    trailers = rng.choice((b"", b"", b"a: b\r\n", b"x: " + b"t" * 80_000 + b"\r\n", b"a: b\r\n" * 20_000))
    framings = (
        b"Content-Length: %d\r\n\r\n" % len(body) + body,
        b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks,
        b"Content-Length: %d\r\n\r\n" % (len(body) + 3) + body,
        b"\r\n" + body,
    )
    wire = head + rng.choice(framings) + rng.choice((b"", b"", b"", b"junk", b"HTTP/1.1 200 OK\r\n\r\n"))
    return wire[: rng.randrange(len(wire) + 1)] if rng.random() < 0.1 else wire


def _chunk(data: bytes, rng: random.Random) -> bytes:
    extension = rng.choice((b"",) * 9 + (b";a=b", b" ", b"\t;")) if rng.random() < 0.998 else b";" + b"e" * 70_000
    size = b"%x" % len(data) if rng.random() < 0.995 else rng.choice((b"-1", b"zz", b"f" * 30, b"0" * 9000 + b"1"))
    return size + extension + b"\r\n" + data + (b"\r\n" if rng.random() < 0.998 else b"")
