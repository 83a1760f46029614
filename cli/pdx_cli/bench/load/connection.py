"""One HTTP/1.1 connection of the generator, and the connections to one server.

A stream costs one callback for each piece that arrives, and no task. aiohttp and httpx spend several times as much.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from pdx_api.hosts import host_problem
from pdx_api.user_info import shown_url
from pdx_cli.bench.load.events import EventReader
from pdx_cli.errors import InputError

_MOST_ERROR: Final = 2000
"""Bytes that are kept of an answer whose status is not 200."""
_IDLE: Final = 3.0
"""Seconds after which an idle connection is not used again: uvicorn closes it after 5."""


@dataclass(slots=True)
class Reply:
    """An answer as it comes."""

    done: Callable[["Reply"], None]
    """Called once, when the answer is complete or the connection has ended."""
    reader: EventReader = field(default_factory=EventReader)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    lost: str = ""
    """Why the connection ended before the answer; empty if it did not."""
    received: bool = False
    """Whether anything has arrived."""
    body: bytes = b""
    """The beginning of an answer whose status is not 200."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go."""

    host: str
    port: int
    tls: bool
    prefix: str
    """Path before /v1."""

    @classmethod
    def of(cls, url: str) -> "Server":
        """Read a URL, with or without /v1 at its end; raises InputError."""
        shown = f"{shown_url(url)} is not the URL of a server"
        instead = f"{shown}; write for example http://127.0.0.1:8000."
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:  # brackets without their ends, or a port that does not exist
            raise InputError(instead) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(instead)
        if problem := host_problem(parts.hostname):
            raise InputError(f"{shown}: {problem}; write for example http://127.0.0.1:8000.")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/").removesuffix("/v1"))

    @property
    def url(self) -> str:
        """Its URL, without /v1."""
        return f"{'https' if self.tls else 'http'}://{self._authority}{self.prefix}"

    @property
    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def head(self, path: str, length: int, headers: Mapping[str, str]) -> bytes:
        """Return the head of a POST of JSON."""
        lines = [f"POST {self.prefix}{path} HTTP/1.1", f"Host: {self._authority}", "Content-Type: application/json"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        return "\r\n".join([*lines, f"Content-Length: {length}", "\r\n"]).encode()


class Connection(asyncio.Protocol):
    """A connection. It carries one request at a time."""

    def __init__(self, clock: Callable[[], float], pool: "Connections") -> None:
        self._clock = clock
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._at = 0.0
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it can carry a request."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes, reply: Reply) -> None:
        """Send a request; its answer goes to `reply`."""
        assert self._transport is not None
        assert self._reply is None, "the connection is busy"
        self._reply = reply
        self._transport.write(data)

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no base class

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._at = self._clock()
        if self._reply is not None:
            self._reply.received = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"the answer is no HTTP: {error}")
            self.abort()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        self._pool.forget(self)
        self._end(str(error) if error else "the server closed the connection")

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        if self._reply is not None:
            self._reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """See httptools."""
        if self._reply is not None:
            self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        reply = self._reply
        if reply is None:
            return
        if reply.status == 200:
            reply.reader.add(body, self._at)
        elif len(reply.body) < _MOST_ERROR:
            reply.body += body[:_MOST_ERROR]

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._parser.get_status_code() < 200:
            return
        reply, self._reply = self._reply, None
        if self._parser.should_keep_alive():
            self.idle_since = self._at
            self._pool.put_back(self)
        else:
            self.abort()
        if reply is not None:
            reply.complete = True
            reply.done(reply)

    def _end(self, why: str) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.lost = why
            reply.done(reply)


class Connections:
    """The connections to one server."""

    def __init__(self, server: Server, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._tls = ssl.create_default_context() if server.tls else None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    def take(self) -> Connection | None:
        """An idle connection; None if there is none."""
        while self._idle:
            found = self._idle.pop()
            if found.is_open and self._clock() - found.idle_since < _IDLE:
                return found
            found.abort()
        return None

    async def open(self) -> Connection:
        """Open a connection; raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self._clock, self), self._server.host, self._server.port, ssl=self._tls
        )
        self._all.add(connection)
        return connection

    def put_back(self, connection: Connection) -> None:
        """The answer is complete."""
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """It has ended."""
        self._all.discard(connection)

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
