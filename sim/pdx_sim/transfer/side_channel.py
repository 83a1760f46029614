"""The side channel: engines exchange JSON lines over TCP.

A message is an object with `op` and `engine_id`, the id of the receiver. The answer is an object; a refusal has
`error`. A listener that is closed drops its connections, as a dead process does.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson

from pdx_sim.transfer.ports import listen_steadily

Message = dict[str, Any]
Handler = Callable[[Message], Message]


class PeerUnreachableError(Exception):
    """The peer does not listen, does not answer in time, or closed the connection."""


class PeerRefusedError(Exception):
    """The peer answered with an error; the text is its reason."""


class SideChannel:
    """One engine's end: a listener that answers with `handler`, and a connection to each peer it has called."""

    def __init__(self, handler: Handler, latency: float, timeout: float) -> None:
        self._handler = handler
        self._latency = latency
        self._timeout = timeout
        self._server: asyncio.Server | None = None
        self._inbound: set[asyncio.StreamWriter] = set()
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._blocked_until = 0.0
        """On the event loop's clock."""
        self._blocked_ports: frozenset[int] = frozenset()
        """The peers that are not reached; empty: all."""
        self._drops = False
        """Whether messages over a connection that works wait until the block ends. Otherwise they fail at once."""
        self._changed = asyncio.Event()
        """Set when the block changes, for those who wait for its end."""

    def block(self, seconds: float, ports: frozenset[int] = frozenset(), *, drops: bool = False) -> None:
        """Reach no peer, or none that listens on `ports`, for `seconds`; 0 ends it.

        `drops`: packets are lost without an error. A new connection then fails after the timeout.
        """
        self._blocked_until = asyncio.get_running_loop().time() + seconds if seconds else 0.0
        self._blocked_ports, self._drops = ports, drops
        self._changed.set()
        self._changed = asyncio.Event()

    async def listen(self, host: str, port: int) -> int:
        """Open the listener; return its port."""
        self._server = await listen_steadily(lambda free: asyncio.start_server(self._serve, host, free), port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Drop the listener and every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in (*self._inbound, *(peer.writer for peer in self._peers.values() if peer.writer)):
            writer.transport.abort()
        self._peers.clear()
        await asyncio.sleep(0)

    async def call(self, host: str, port: int, message: Message) -> Message:
        """Send a message and await its answer. Raises PeerUnreachableError or PeerRefusedError."""
        if self._latency:
            await asyncio.sleep(self._latency)
        peer = self._peers.setdefault((host, port), _Peer(host, port))
        await self._pass_block(peer, host, port)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await peer.request(message)
        except (OSError, TimeoutError, EOFError, ValueError) as error:
            raise PeerUnreachableError(f"{host}:{port}: {error!r}") from error
        if "error" in answer:
            raise PeerRefusedError(str(answer["error"]))
        return answer

    async def _pass_block(self, peer: "_Peer", host: str, port: int) -> None:
        """Return once the peer is reached. Raises PeerUnreachableError."""
        clock = asyncio.get_running_loop().time
        while (left := self._blocked_until - clock()) > 0.0 and port in (self._blocked_ports or (port,)):
            if self._drops:
                works, changed = peer.writer is not None, self._changed
                with suppress(TimeoutError):
                    async with asyncio.timeout(left if works else min(left, self._timeout)):
                        await changed.wait()
                if works or changed.is_set():
                    continue
            raise PeerUnreachableError(f"{host}:{port}: blocked")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # closed while this was being accepted
            writer.transport.abort()
            return
        self._inbound.add(writer)
        try:
            with suppress(ConnectionError):
                while line := await reader.readline():
                    writer.write(orjson.dumps(self._answer(line)) + b"\n")
                    await writer.drain()
        finally:
            self._inbound.discard(writer)
            writer.close()

    def _answer(self, line: bytes) -> Message:
        try:
            message = orjson.loads(line)
            return self._handler(message)
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"malformed: {error!r}"}


class _Peer:
    """A connection to one peer: one message at a time. It reopens if the peer has closed it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._lock = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def request(self, message: Message) -> Message:
        line = orjson.dumps(message) + b"\n"
        async with self._lock:
            answer = b""
            if self._reader is not None:
                with suppress(OSError):
                    answer = await self._exchange(line)
            if not answer:
                self.drop()
                self._reader, self.writer = await asyncio.open_connection(*self._address)
                answer = await self._exchange(line)
            if not answer:
                self.drop()
                raise EOFError("the peer closed the connection")
            return dict(orjson.loads(answer))

    async def _exchange(self, line: bytes) -> bytes:
        """Write one line and read one. The connection is closed if either does not complete."""
        assert self._reader is not None
        assert self.writer is not None
        done = False
        try:
            self.writer.write(line)
            answer = await self._reader.readline()
            done = True
            return answer
        finally:
            if not done:
                self.drop()

    def drop(self) -> None:
        """Close the connection, if any."""
        if self.writer is not None:
            self.writer.close()
        self._reader = self.writer = None
