"""Messages between the control process and a worker process, over a socket pair that only the two have."""

import asyncio
import pickle
import socket
from dataclasses import dataclass
from typing import Any


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


class Channel:
    """One end of a socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> "Channel":
        """Create an end over one socket of the pair."""
        return cls(*await asyncio.open_connection(sock=sock))

    def send(self, message: object) -> None:
        """Send a message."""
        data = pickle.dumps(message)
        self._writer.write(len(data).to_bytes(4, "big") + data)

    async def receive(self) -> object | None:
        """Return the next message; None when the other end is closed."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return pickle.loads(await self._reader.readexactly(size))  # type: ignore[no-any-return] # noqa: S301 (own process)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        """Close this end. The other one receives None."""
        self._writer.close()
