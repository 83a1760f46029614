"""Hostile clients: connections that share a rate of bytes, each with a random behaviour.

`python -m tests.component.hostile.clients ADDRESS CONNECTIONS SEED KIND RATE NAME...` runs them in their own process,
so that they delay nobody else. `KIND` is `hostile` with the names of behaviours, or `honest`; `RATE` is in bytes per
second. It prints a line when all have begun, and at the end of its input a line of JSON with their counts.
"""

import asyncio
import json
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.soak.clients import connect, drop
from pdx_proxy.config.settings import Address

KEY: Final = "hostile-key"
"""The key of the hostile clients; half of their requests have it, and the others have none or a wrong one."""
BYTES_PER_SECOND: Final = 2_000_000
"""All connections together."""
PATHS: Final = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
_PIECE: Final = 16 << 10
_PATIENCE: Final = 8.0
"""Seconds of one behaviour at most."""
_LEAVES: Final = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError)
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass
class Rate:
    """Bytes that may be sent now, by all connections."""

    per_second: float
    sent: int = 0
    _due: float = 0.0

    async def take(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        now = time.monotonic()
        self._due = max(self._due, now) + size / self.per_second
        self.sent += size
        if self._due > now:
            await asyncio.sleep(self._due - now)


@dataclass
class Peer:
    """One connection of a hostile client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rng: random.Random
    rate: Rate

    async def send(self, data: bytes) -> None:
        """Send, at the rate of all."""
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            await self.rate.take(len(piece))
            self.writer.write(piece)
            await self.writer.drain()

    async def drip(self, data: bytes, seconds: float) -> None:
        """Send byte by byte."""
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(seconds)

    async def read(self, seconds: float = 3.0, gap: float = 0.3) -> bytes:
        """Read what comes within some seconds, until the end or a gap."""
        found = bytearray()
        with suppress(*_LEAVES):
            async with asyncio.timeout(seconds) as patience:
                while len(found) < 1 << 20 and (data := await self.reader.read(1 << 16)):
                    found += data
                    patience.reschedule(asyncio.get_running_loop().time() + gap)
        return bytes(found)

    def deaf(self) -> None:
        """Read nothing from now on."""
        self.reader._transport.pause_reading()  # type: ignore[attr-defined]

    def reset(self) -> None:
        """Reset the connection."""
        with suppress(OSError):
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()

    def key(self) -> bytes:
        """A header with a valid key, a wrong one, or none."""
        wrong = (b"Authorization: Bearer wrong\r\n", b"", b"x-api-key: \xff\xfe\r\n", b"Authorization: Basic YTpi\r\n")
        right = (b"Authorization: Bearer " + KEY.encode() + b"\r\n", b"x-api-key: " + KEY.encode() + b"\r\n")
        return self.rng.choice(right if self.rng.random() < 0.5 else wrong)

    def head(self, more: bytes = b"", path: str = "", method: str = "POST", key: bytes | None = None) -> bytes:
        """The head of a request, without its end."""
        chosen = path or self.rng.choice(PATHS)
        given = self.key() if key is None else key
        lines = f"{method} {chosen} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        return lines.encode() + given + more

    def post(self, body: bytes, more: bytes = b"", path: str = "", key: bytes | None = None) -> bytes:
        """A whole request."""
        return self.head(more + b"Content-Length: %d\r\n" % len(body), path, key=key) + b"\r\n" + body


Behaviour = Callable[[Peer], Awaitable[None]]


def body_of(path: str, prompt: str = "request hostile", tokens: int = 4, **more: Any) -> bytes:
    """A request's body, in the format of its API."""
    question: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    if path.endswith("/responses"):
        question = {"input": prompt, "max_output_tokens": tokens}
    elif path == "/v1/completions":
        question = {"prompt": prompt, "max_tokens": tokens}
    return json.dumps({"model": "sim", **question, **more}).encode()


@dataclass
class Crowd:
    """So many connections, each replaced when its behaviour has ended."""

    where: Address
    behaviours: Sequence[Behaviour]
    rng: random.Random
    rate: Rate = field(default_factory=lambda: Rate(BYTES_PER_SECOND))
    done: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    """Connections that the gateway did not accept."""

    async def run(self, connections: int) -> None:
        """Keep so many connections, until cancelled."""
        tasks = []
        for _ in range(connections):
            tasks.append(asyncio.create_task(self._stay()))
            await asyncio.sleep(0.002)
        print("connected", flush=True)  # noqa: T201 (for the parent)
        await asyncio.gather(*tasks)

    async def _stay(self) -> None:
        while True:
            behaviour = self.rng.choice(self.behaviours)
            try:
                reader, writer = await connect(self.where)
            except OSError:
                self.refused += 1
                await asyncio.sleep(0.1)
                continue
            self.done[behaviour.__name__] += 1
            try:
                with suppress(*_LEAVES):
                    async with asyncio.timeout(_PATIENCE):
                        await behaviour(Peer(reader, writer, self.rng, self.rate))
            finally:
                drop(writer, reset=self.rng.random() < 0.2)
            await asyncio.sleep(self.rng.uniform(0.0, 0.2))

    def counts(self) -> dict[str, Any]:
        """What has been done."""
        return {"sent": self.rate.sent, "refused": self.refused, "done": self.done}


async def honest(peer: Peer) -> None:
    """An ordinary request with a valid key, whose body has 80 KB on average, and which reads its answer."""
    path = peer.rng.choice(PATHS)
    body = body_of(path, "request honest " + "x" * peer.rng.randrange(2_000), 4, user="y" * peer.rng.randrange(160_000))
    await peer.send(peer.post(body, b"Connection: close\r\n", path, b"Authorization: Bearer " + KEY.encode() + b"\r\n"))
    await peer.read(_PATIENCE, _PATIENCE)


async def main(argv: Sequence[str]) -> None:
    """Run the process."""
    from tests.component.hostile.client_behaviours import BEHAVIOURS
    from tests.component.hostile.wire_behaviours import WIRE

    host, _, port = argv[0].rpartition(":")
    table = {each.__name__: each for each in (*BEHAVIOURS, *WIRE)}
    some: list[Behaviour] = [honest] if argv[3] == "honest" else [table[name] for name in argv[5:]]
    rate = Rate(float(argv[4]))
    crowd = Crowd(Address(host, int(port)), some, random.Random(int(argv[2])), rate)
    running = asyncio.create_task(crowd.run(int(argv[1])))
    await asyncio.to_thread(sys.stdin.read)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    print(json.dumps(crowd.counts()), flush=True)  # noqa: T201 (for the parent)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
