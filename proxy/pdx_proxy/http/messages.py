"""HTTP/1.1 heads as bytes: of requests to engines and of answers to clients. Pure."""

from collections.abc import Collection, Iterable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

_JOINED_BYTES: Final = 4096
"""Shorter parts of a body are joined with their neighbours."""
_DROPPED_ANSWER_HEADERS: Final = frozenset(
    {b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding", b"x-request-id"}
)
_CONNECTION_OPTIONS: Final = frozenset({b"", b"close", b"keep-alive"})
"""Members of a `connection` header that name no header of the same answer that would not be dropped anyway."""
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class BodyParts:
    """A large body, in parts that are sent one after the other and never joined. Immutable."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self.parts: list[bytes | memoryview] = []
        """Without empty ones; short ones are joined."""
        self.size = 0
        short: list[bytes | memoryview] = []
        for part in parts:
            self.size += len(part)
            if len(part) < _JOINED_BYTES:
                short.append(part)
                continue
            if short:
                self.parts.append(b"".join(short))
                short = []
            self.parts.append(part)
        if short:
            self.parts.append(b"".join(short))

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


def request_head(
    method: str, path: str, host: str, headers: Iterable[tuple[str, str]], size: int, own: str = ""
) -> bytes:
    """The head of a request to an engine with a body of `size` bytes. `own` is header lines with their line ends."""
    parts = [method, " ", path, " HTTP/1.1\r\nHost: ", host, "\r\n", own]
    for name, value in headers:
        parts += (name, ": ", value, "\r\n")
    parts += ("Content-Type: application/json\r\nContent-Length: ", str(size), "\r\n\r\n") if size else ("\r\n",)
    return "".join(parts).encode("latin-1")


def http_date(second: int) -> str:
    """A Unix time as the value of a Date header (RFC 9110, 5.6.7)."""
    return formatdate(second, usegmt=True)


def answer_head(
    status: int, headers: Collection[tuple[bytes, bytes]], added: Mapping[str, str], date: bytes = b""
) -> bytes:
    """Status line and headers of an answer to a client. `added` is the framing and further headers.

    `date` is the line of the gateway's own Date header. Names are in lower case. Headers that belong to the engine's
    connection are dropped, also those that its `connection` names (RFC 9110, 7.6.1).
    """
    named = b""
    parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        if name not in _DROPPED_ANSWER_HEADERS:
            parts += (name, b": ", value, b"\r\n")
        elif name == b"connection":
            named += b"," + value.lower()
    if named:
        dropped = {option.strip() for option in named.split(b",")}
        if not dropped <= _CONNECTION_OPTIONS:
            kept = [h for h in headers if h[0] not in dropped and h[0] != b"connection"]
            return answer_head(status, kept, added, date)
    own = ""
    for key, text in added.items():
        own += f"{key}: {text}\r\n"
    parts += (own.encode("latin-1"), date, b"\r\n")
    return b"".join(parts)
