"""Reads the head of a request on the fast path, or finds that the request is not one for the fast path. Pure."""

import re
from collections.abc import Mapping
from typing import Final

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
_UNUSUAL: Final = frozenset(
    {"content-encoding", "content-length", "expect", "proxy-connection", "transfer-encoding", "upgrade"}
)
_CLOSE: Final = frozenset({"close", "Close"})
_CONNECTION: Final = _CLOSE | {"keep-alive", "Keep-Alive"}
_HEADER: Final = re.compile(rb"([\w!#$%&'*+.^`|~-]+): *([!-~](?:[ -~]*[!-~])?)?", re.ASCII)
"""A line that all parsers read alike: a token, and visible characters and spaces (RFC 9110, 5.1 and 5.5)."""
_MOST_DIGITS: Final = 15
_HEADS: Final[dict[bytes, tuple[str, dict[str, str], bool]]] = {}
"""What recent heads were, by the head without the length of its body: a client mostly repeats the rest.

They hold the clients' keys, so their owner forgets them every few seconds (`forget_heads`).
"""
_MOST_KEPT: Final = 256
_LONGEST_KEPT: Final = 2048

_HOST: Final = re.compile(r"(?:(?:[\w.~!$&'()*+;=-]|%[0-9A-Fa-f]{2})*|\[[0-9A-Fa-f:.]+\])(?::\d{0,5})?", re.ASCII)
"""A host and a port (RFC 9110, 7.2), without a comma: it joins several hosts. Nobody is to read another host there."""


def is_host(value: str) -> bool:
    """Whether the header Host has this value. It may be empty."""
    return _HOST.fullmatch(value) is not None


def may_be_hot(data: bytes) -> bool:
    """Whether the first bytes of a request are those of one for the fast path, as far as they have arrived."""
    return data.startswith(_HOT_LINES) or (
        len(data) < _LONGEST_LINE and any(line.startswith(data) for line in _HOT_LINES)
    )


def read_head(head: bytes, max_body_bytes: int) -> tuple[str, Mapping[str, str], int, bool] | None:
    """Path, headers by lower-case name, length of the body, and whether the connection is kept alive.

    The headers are without the length. They may be those of another request too. None for a head that goes to the
    fallback. The first line is one of a hot request.
    """
    before, name, rest = head.partition(b"\r\nContent-Length: ")
    if not name:
        before, name, rest = head.partition(b"\r\ncontent-length: ")
    digits, _, after = rest.partition(b"\r\n")
    others = before + b"\r\n" + after
    found = _HEADS.get(others)
    if found is None:
        headers = _read_headers(others)
        if headers is None:
            return None
        path = _HOT[others[: others.index(b"\n") + 1]]
        found = path, headers, headers.get("connection", "") not in _CLOSE
        if len(others) <= _LONGEST_KEPT:
            if len(_HEADS) >= _MOST_KEPT:
                _HEADS.clear()
            _HEADS[others] = found
    size = int(digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else 0
    return (found[0], found[1], size, found[2]) if 0 < size <= max_body_bytes else None


def forget_heads() -> None:
    """Keep nothing of earlier heads."""
    _HEADS.clear()


def _read_headers(head: bytes) -> dict[str, str] | None:
    """The headers of a head without the length of its body; None for a head that goes to the fallback."""
    found: dict[str, str] = {}
    for line in head.split(b"\r\n")[1:-2]:
        header = _HEADER.fullmatch(line)
        if header is None:
            return None
        name, value = header[1].decode().lower(), (header[2] or b"").decode()
        if name in found:
            if name != FORWARDED_FOR:
                return None
            value = f"{found[name]},{value}"
        found[name] = value
    usual = _UNUSUAL.isdisjoint(found) and found.get("connection", "close") in _CONNECTION
    return found if usual and len(found) < MAX_HEADERS and is_host(found.get("host", ",")) else None
