"""Reads the head of a request on the fast path, or finds that the request is not one for the fast path. Pure."""

import re
from typing import Final

import httptools

from pdx_proxy.http.routes import ROUTES, Kind

_HOT: Final = {
    f"POST {path} HTTP/1.1\r\n".encode(): path for path, (_, kind) in ROUTES.items() if kind is Kind.GENERATE
}
_HOT_LINES: Final = tuple(_HOT)
_LONGEST_LINE: Final = max(map(len, _HOT))
MAX_HEAD_BYTES: Final = 8190
"""A longer head goes to aiohttp, which reads it or answers with an error."""
MAX_HEADERS: Final = 128
"""Headers of one request, on both servers."""
FORWARDED_FOR: Final = "x-forwarded-for"
"""The header of the addresses behind proxies. Several lines of it are one list, in their order (RFC 9110, 5.3)."""
_UNUSUAL: Final = frozenset({"content-encoding", "expect", "transfer-encoding", "upgrade"})


_HOST: Final = re.compile(r"(?:[\w.~!$&'()*+;=%-]*|\[[0-9A-Fa-f:.]+\])(?::\d{0,5})?", re.ASCII)
"""A host and a port (RFC 9110, 7.2), without a comma: it joins several hosts. Nobody is to read another host there."""
_HOSTS: Final[set[str]] = set()
"""Hosts that were read before."""
_MOST_HOSTS: Final = 64


def is_host(value: str) -> bool:
    """Whether the header Host has this value. It may be empty."""
    if _HOST.fullmatch(value) is None:
        return False
    if len(_HOSTS) < _MOST_HOSTS:
        _HOSTS.add(value)
    return True


def may_be_hot(data: bytes) -> bool:
    """Whether the first bytes of a request are those of one for the fast path, as far as they have arrived."""
    return data.startswith(_HOT_LINES) or (
        len(data) < _LONGEST_LINE and any(line.startswith(data) for line in _HOT_LINES)
    )


def hot_path(data: bytes) -> str:
    """The path of a request for the fast path, whose first line has arrived."""
    return _HOT[data[: data.index(b"\n") + 1]]


class _Headers:
    """Receives the headers from httptools."""

    __slots__ = ("by_name", "repeated")

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}
        self.repeated = False

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key in self.by_name:
            if key == FORWARDED_FOR:
                text = f"{self.by_name[key]},{text}"
            else:
                self.repeated = True
        self.by_name[key] = text


def read_head(head: bytes, max_body_bytes: int) -> tuple[dict[str, str], int, bool] | None:
    """Headers by lower-case name, length of the body, and whether the connection is kept alive.

    None for a head that goes to the fallback.
    """
    headers = _Headers()
    parser = httptools.HttpRequestParser(headers)
    try:
        parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    found = headers.by_name
    length = found.get("content-length", "")
    if (
        headers.repeated
        or len(found) > MAX_HEADERS
        or not _UNUSUAL.isdisjoint(found)
        or not length.isdecimal()
        or "host" not in found
        or (found["host"] not in _HOSTS and not is_host(found["host"]))
    ):
        return None
    size = int(length)
    if not 0 < size <= max_body_bytes:  # an empty body ends the request, and the parser then forgets `close`
        return None
    return found, size, parser.should_keep_alive()
