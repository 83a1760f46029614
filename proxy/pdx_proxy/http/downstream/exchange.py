"""What a handler sees of a client's request: head, body, and a sink to write to. Not which server read it."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from pdx_proxy.http.messages import answer_head
from pdx_proxy.payload.request import RefusedError

_BODY_SECONDS: Final = 30.0
_SLOWEST_BYTES_PER_SECOND: Final = 16 * 1024
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing resets, so that HTTP/1.0's end of an answer is not taken for one."""


class Source(Protocol):
    """Something that can be told to stop and go on."""

    def pause(self) -> None:
        """Stop producing."""

    def resume(self) -> None:
        """Go on."""


class Exchange(Protocol):
    """One request of a client and the place for its answer.

    A handler is cancelled when the client leaves. It writes one whole answer, or calls `abort`.
    """

    @property
    def method(self) -> str:
        """GET, POST, …"""

    @property
    def path(self) -> str:
        """Path without the query."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The head, by names in lower case."""

    @property
    def chunks(self) -> bool:
        """Whether the client understands chunked answers (HTTP/1.1)."""

    @property
    def begun(self) -> bool:
        """Whether bytes of an answer have been written."""

    @property
    def closes(self) -> bool:
        """Whether the connection is closed after this answer."""

    @property
    def size(self) -> int | None:
        """Length of the body; None when only its end will tell."""

    @property
    def peer(self) -> str:
        """The client's address, without its port."""

    def count_body(self, take: Callable[[int], None]) -> None:
        """Tell `take` how many bytes of a body of unknown length have come; it may raise RefusedError."""

    def drop_body(self) -> None:
        """Answer without the body: what of it is still to come is thrown away, and the connection closed then."""

    async def body(self) -> bytes:
        """The whole body; raises RefusedError when it is too large or comes too slowly."""

    def write(self, data: bytes) -> None:
        """Write bytes of the answer as they are."""

    def feed_from(self, source: Source | None) -> None:
        """Tell `source` to pause while the client reads slower than it writes."""

    def close_after(self) -> None:
        """Close the connection after this answer."""

    def abort(self) -> None:
        """Cut the connection, so that a client cannot take half an answer for a whole one."""


Handler = Callable[[Exchange], Awaitable[None]]


def answer(
    exchange: Exchange, status: int, body: bytes, headers: Mapping[str, str], content_type: str = "application/json"
) -> None:
    """Write a whole answer of the gateway's own."""
    framing = {"content-type": content_type, "content-length": str(len(body)), **headers}
    if exchange.closes:
        framing["connection"] = "close"
    exchange.write(answer_head(status, (), framing) + (body if exchange.method != "HEAD" else b""))


def body_seconds(arrived: int) -> float:
    """How long a body may have taken of which `arrived` bytes are here: 30 s, and what they need at 16 KiB/s."""
    return _BODY_SECONDS + arrived / _SLOWEST_BYTES_PER_SECOND


def body_too_slow() -> RefusedError:
    """The refusal of a body that did not arrive in time."""
    return RefusedError(408, "The request's body did not arrive in time.", "Request Timeout")


def peer_of(transport: asyncio.Transport | None) -> str:
    """A client's address, without its port."""
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else ""


def cut(transport: asyncio.Transport) -> None:
    """End a client's connection in a way that no client takes for the end of an answer."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
