"""Messages between the control process and a worker process, over a socket pair that only the two have."""

import asyncio
import pickle
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_HIGH_WATER: Final = 64 * 1024
"""Unread bytes from which frames wait in `Channel.send_latest`."""


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Control to worker: send your report."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Control to worker: the gateway ends soon (see `Worker.drain`)."""


@dataclass(frozen=True, slots=True)
class Report:
    """Worker to control: `Worker.report()`."""

    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListenerClosed:
    """Worker to control: it shuts down and has accepted every connection that its listening socket had."""


def encode(message: object) -> bytes:
    """Return the frame of a message; raises what pickle raises."""
    data = pickle.dumps(message)
    return len(data).to_bytes(4, "big") + data


class _Protocol(asyncio.StreamReaderProtocol):
    """The protocol of a stream, which also reports that the other end reads again."""

    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self.paused = False
        self.resumed: Callable[[], None] = lambda: None

    def pause_writing(self) -> None:
        self.paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self.paused = False
        super().resume_writing()
        self.resumed()


class Channel:
    """One end of a socket pair."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.Transport, protocol: _Protocol) -> None:
        self._reader = reader
        self._transport = transport
        self._protocol = protocol
        self._latest: dict[str, Callable[[], bytes]] = {}
        """By kind, what is sent when the other end reads again."""
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        protocol.resumed = self._send_waiting

    @classmethod
    async def over(cls, sock: socket.socket) -> "Channel":
        """Create an end over one socket of the pair, and own the socket."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        try:
            transport, protocol = await loop.create_connection(lambda: _Protocol(reader, loop), sock=sock)
        except BaseException:
            sock.close()
            raise
        return cls(reader, transport, protocol)

    def send(self, frame: bytes) -> None:
        """Send a frame, however much is unread: only for messages of a bounded number."""
        self._transport.write(frame)

    def send_latest(self, kind: str, frame: Callable[[], bytes]) -> None:
        """Send the frame that `frame` returns once the other end reads. A later one of the same kind replaces it."""
        self._latest.pop(kind, None)
        self._latest[kind] = frame
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._latest and not self._protocol.paused:
            kind = next(iter(self._latest))
            self._transport.write(self._latest.pop(kind)())

    async def receive(self) -> object | None:
        """Return the next message; None when the other end has ended or is closed."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return pickle.loads(await self._reader.readexactly(size))  # type: ignore[no-any-return] # noqa: S301 (own process)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def end(self) -> None:
        """Send nothing more. The other end receives None, and may go on sending."""
        self._latest.clear()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close this end. The other one receives None."""
        self._transport.close()
