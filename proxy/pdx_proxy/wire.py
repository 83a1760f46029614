"""HTTP/1.1 as bytes: requests towards engines and answers towards clients."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

from pdx_proxy.settings import Keys

_AUTHORIZATION: Final = "authorization"
_FORWARDED: Final = ("traceparent", "tracestate")
"""What of a client's head reaches an engine. Request ids, ranks and priorities speak to its inside and do not."""

_DROPPED_ANSWER_HEADERS: Final = frozenset(
    {b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding", b"x-request-id"}
)
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


def forwarded_headers(keys: Keys) -> tuple[str, ...]:
    """Names of what of a client's head goes on. Where the gateway knows keys, its clients' are no engine's business."""
    return _FORWARDED if keys.clients is not None or keys.engines is not None else (_AUTHORIZATION, *_FORWARDED)


def request_head(
    method: str, path: str, host: str, headers: Iterable[tuple[str, str]], size: int, own: str = ""
) -> bytes:
    """The head of a request to an engine with a body of `size` bytes; `own` holds whole lines of the gateway's."""
    lines = [f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{own}"]
    lines += [f"{name}: {value}\r\n" for name, value in headers]
    if size:
        lines.append(f"Content-Type: application/json\r\nContent-Length: {size}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")


def answer_head(status: int, headers: Iterable[tuple[bytes, bytes]], added: Mapping[str, str]) -> bytes:
    """Status line and headers of an answer to a client; `added` holds the framing and the gateway's own headers."""
    lines = [b"HTTP/1.1 %d %b" % (status, _REASONS.get(status, b""))]
    lines += [b"%b: %b" % pair for pair in headers if pair[0].lower() not in _DROPPED_ANSWER_HEADERS]
    own = "\r\n".join([f"{name}: {value}" for name, value in added.items()])
    lines += (own.encode("latin-1"), b"\r\n") if own else (b"\r\n",)
    return b"\r\n".join(lines)
