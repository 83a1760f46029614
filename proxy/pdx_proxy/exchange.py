"""What a handler sees of a client's request: head, body, and a sink to write to. Not which server read it."""

from collections.abc import Mapping
from typing import Protocol

from pdx_proxy.wire import answer_head


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
        """The head, by names in any case."""

    @property
    def chunks(self) -> bool:
        """Whether the client understands chunked answers (HTTP/1.1)."""

    @property
    def begun(self) -> bool:
        """Whether bytes of an answer have been written."""

    @property
    def closes(self) -> bool:
        """Whether the connection is closed after this answer."""

    async def body(self) -> bytes:
        """The whole body; raises RefusedError when it is too large."""

    def write(self, data: bytes) -> None:
        """Write bytes of the answer as they are."""

    def feed_from(self, source: Source | None) -> None:
        """Tell `source` to pause while the client reads slower than it writes."""

    def close_after(self) -> None:
        """Close the connection after this answer."""

    def abort(self) -> None:
        """Cut the connection, so that a client cannot take half an answer for a whole one."""


def answer(
    exchange: Exchange, status: int, body: bytes, headers: Mapping[str, str], content_type: str = "application/json"
) -> None:
    """Write a whole answer of the gateway's own."""
    framing = {"content-type": content_type, "content-length": str(len(body)), **headers}
    if exchange.closes:
        framing["connection"] = "close"
    exchange.write(answer_head(status, (), framing) + (body if exchange.method != "HEAD" else b""))
