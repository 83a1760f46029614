"""Where requests end on a connection that aiohttp reads, and whether their framing is a waste. Pure.

Only where a request ends, the fast path can take the connection back.
"""

from typing import Final

import httptools

FEW_CHUNKS: Final = 1000
"""So many chunks of a body may be of any size."""
LEAST_CHUNK_BYTES: Final = 64
"""The least bytes for each further chunk. A chunk costs as much as 10 KB of a body without chunks."""
_MAX_TRAILER_BYTES: Final = 8190


class RequestBoundary:
    """Follows the bytes of a connection with a parser of its own, because aiohttp's does not show its position.

    A connection that changed servers within a request would be read as other requests than its client has sent.
    """

    __slots__ = (
        "_begun",
        "_chunk_bytes",
        "_chunked",
        "_chunks",
        "_ended",
        "_length",
        "_missing",
        "_parser",
        "_trailer_bytes",
    )

    def __init__(self) -> None:
        self._begun = self._ended = 0
        """Requests whose first byte, and whose last byte, has come."""
        self._length = self._missing = 0
        """Bytes of the request's body by its head; and those that have not come, of a body that is skipped."""
        self._chunked = False
        self._chunks = self._chunk_bytes = self._trailer_bytes = 0
        """Of the request's body."""
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        """None once the bytes are not understood: the connection then never leaves aiohttp."""

    def follow(self, data: bytes) -> None:
        """Follow further bytes."""
        while data and self._parser is not None:
            if self._missing:
                skipped = min(self._missing, len(data))
                self._missing -= skipped
                self._ended += not self._missing
                data = data[skipped:]
                continue
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._read_on(self._parser.get_method())
            except httptools.HttpParserError:
                self._parser = None

    def is_reached(self, requests: int) -> bool:
        """Whether every byte belongs to one of `requests` whole requests, which is how many aiohttp has found."""
        return self._parser is not None and self._begun == self._ended == requests

    @property
    def wastes(self) -> bool:
        """Whether the body of the present request is framed in a way that costs much more than its bytes."""
        return self._trailer_bytes > _MAX_TRAILER_BYTES or (
            self._chunk_bytes < LEAST_CHUNK_BYTES * (self._chunks - FEW_CHUNKS)
        )

    def has_more(self, requests: int) -> bool:
        """Whether more than so many requests have begun."""
        return self._begun > requests

    def _read_on(self, method: bytes) -> None:
        """Follow what comes behind the head of a request for an upgrade, which aiohttp declines: its body."""
        self._parser = None if method == b"CONNECT" or self._chunked else httptools.HttpRequestParser(self)
        self._missing = self._length
        self._ended -= bool(self._missing)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._begun += 1
        self._length, self._chunked = 0, False
        self._chunks = self._chunk_bytes = self._trailer_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the request, or a trailer."""
        if self._chunks:
            self._trailer_bytes += len(name) + len(value) + 4
            return
        match name.lower():
            case b"content-length":
                self._length = int(value)
            case b"transfer-encoding":
                self._chunked = True

    def on_chunk_header(self) -> None:
        """A chunk begins; also the last one, which is empty."""
        self._chunks += 1

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._chunk_bytes += len(data)

    def on_message_complete(self) -> None:
        """The last byte of a request; of one for an upgrade, that of its head."""
        self._ended += 1
