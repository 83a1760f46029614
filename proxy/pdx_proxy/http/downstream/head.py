"""Reads the head of a request on the fast path, or finds that the request is not one for the fast path. Pure."""

from typing import Final

import httptools

MAX_HEADERS: Final = 128
"""Headers of one request, on both servers."""
_UNUSUAL: Final = frozenset({"content-encoding", "expect", "transfer-encoding", "upgrade"})


class _Headers:
    """Receives the headers from httptools."""

    __slots__ = ("by_name", "repeated")

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}
        self.repeated = False

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if key in self.by_name:
            self.repeated = True
        self.by_name[key] = value.decode("latin-1")


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
    ):
        return None
    size = int(length)
    if not 0 < size <= max_body_bytes:  # an empty body ends the request, and the parser then forgets `close`
        return None
    return found, size, parser.should_keep_alive()
