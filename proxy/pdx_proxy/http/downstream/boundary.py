"""Where requests end on a connection that aiohttp reads: only there, the fast path can take it back. Pure."""

import httptools


class RequestBoundary:
    """Follows the bytes of a connection with a parser of its own, because aiohttp's does not show its position.

    A connection that changed servers within a request would be read as other requests than its client has sent.
    """

    __slots__ = ("_begun", "_chunked", "_ended", "_length", "_missing", "_parser")

    def __init__(self) -> None:
        self._begun = self._ended = 0
        """Requests whose first byte, and whose last byte, has come."""
        self._length = self._missing = 0
        """Bytes of the request's body by its head; and those that have not come, of a body that is skipped."""
        self._chunked = False
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

    def _read_on(self, method: bytes) -> None:
        """Follow what comes behind the head of a request for an upgrade, which aiohttp declines: its body."""
        self._parser = None if method == b"CONNECT" or self._chunked else httptools.HttpRequestParser(self)
        self._missing = self._length
        self._ended -= bool(self._missing)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._begun += 1
        self._length, self._chunked = 0, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the request."""
        match name.lower():
            case b"content-length":
                self._length = int(value)
            case b"transfer-encoding":
                self._chunked = True

    def on_message_complete(self) -> None:
        """The last byte of a request; of one for an upgrade, that of its head."""
        self._ended += 1
