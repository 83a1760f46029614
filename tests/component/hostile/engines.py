"""A hostile engine: a server before a simulated engine. It answers each request honestly, or by a behaviour."""

import asyncio
import json
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_sim import SimEngine

_NUMBER: Final = re.compile(rb"request (\d+)\b")
_RESET: Final = struct.pack("ii", 1, 0)
_LEAVES: Final = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
"""The gateway has closed the connection."""
MOST: Final = 256 << 20
"""Bytes after which an endless answer ends, far above every limit of the gateway."""


class Page(StrEnum):
    """What the gateway requests from an engine."""

    METRICS = "metrics"
    MODELS = "models"
    VERSION = "version"
    HEALTH = "health"
    ANSWER = "answer"
    """Of a request for a completion, a warm-up or a settlement."""


class Style(StrEnum):
    """What of a hostile engine is hostile."""

    CLIENTS = "clients"
    """The answers to clients. Warm-ups and pages are honest, so the engine stays in service, if it may."""
    PAGES = "pages"
    """The pages; answers are honest."""
    WHOLE = "whole"
    """Everything."""


@dataclass
class Ask:
    """One request to a hostile engine, and the connection on which it answers."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rng: random.Random
    page: Page
    path: str = ""
    body: bytes = b""
    stays: bool = False
    """Whether the connection stays open for the next request."""
    sent: int = 0

    @property
    def number(self) -> int:
        """Of the client's request; -1 of the gateway's own."""
        found = _NUMBER.search(self.body)
        return int(found[1]) if found else -1

    @property
    def stream(self) -> bool:
        """Whether the request asks for a stream."""
        with suppress(ValueError):
            return json.loads(self.body or b"{}").get("stream") is True
        return False

    @property
    def api(self) -> str:
        """The last part of the path: completions, messages or responses; of a chat, it is chat."""
        return "chat" if "/chat/" in self.path else self.path.rpartition("/")[2]

    async def send(self, data: bytes) -> None:
        """Write, as fast as the gateway reads."""
        self.writer.write(data)
        self.sent += len(data)
        await self.writer.drain()

    async def flood(self, piece: bytes, most: int = MOST) -> None:
        """Write a piece again and again."""
        many = piece * max(1, 65536 // len(piece))
        for _ in range(most // len(many) + 1):
            await self.send(many)

    async def drip(self, data: bytes, seconds: float) -> None:
        """Write byte by byte."""
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(seconds)

    async def head(self, status: str = "200 OK", kind: str = "application/json", more: str = "") -> None:
        """Begin an answer in chunks."""
        await self.send(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n{more}\r\n".encode()
        )

    async def chunk(self, data: bytes) -> None:
        """Write a chunk; an empty one is the end."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def whole(self, body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = "") -> None:
        """Write a whole answer with its length."""
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        await self.send(head.encode() + body)

    def reset(self) -> None:
        """Reset the connection."""
        sock = self.writer.get_extra_info("socket")
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()


Behaviour = Callable[[Ask], Awaitable[None]]


@dataclass(frozen=True)
class Spell:
    """What a hostile engine does for some time: behaviours by page, of which each request gets a random one."""

    style: Style
    behaviours: Mapping[Page, Sequence[Behaviour]]

    def choose(self, ask: Ask) -> Behaviour | None:
        """Return the behaviour for a request; None answers honestly."""
        if self.style is Style.PAGES and ask.page is Page.ANSWER:
            return None
        if self.style is Style.CLIENTS and ask.number < 0:
            return None
        some = self.behaviours.get(ask.page, ())
        return ask.rng.choice(some) if some else None


@dataclass
class HostileEngine:
    """`async with HostileEngine(engine, rng)`: honest until `spell` is set."""

    engine: SimEngine
    rng: random.Random
    spell: Spell | None = None
    touched: dict[int, set[str]] = field(default_factory=dict)
    """Requests that it had while it was hostile -> its behaviours in them."""
    done: Counter[str] = field(default_factory=Counter)
    """Behaviours and how often they were used."""
    open: Counter[int] = field(default_factory=Counter)
    """Requests that it has now."""
    honest: Callable[[Ask], Behaviour | None] = lambda _: None
    """What an honest engine does otherwise than a simulated one."""
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def role(self) -> Role:
        """Of the engine."""
        return self.engine.settings.role

    @property
    def name(self) -> str:
        """Of its pod."""
        return f"hostile-{self.role}"

    def spec(self, order: Order) -> EndpointSpec:
        """The engine as the gateway sees it."""
        return EndpointSpec(Address("127.0.0.1", self.port), self.role, order=order, pod=self.name, instance="1")

    def turn(self, spell: Spell | None) -> None:
        """Become hostile, or honest again. Requests that it has already count as touched."""
        self.spell = spell
        if spell is not None:
            for number in +self.open:
                self.touched.setdefault(number, set())

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            stays = True
            while stays:
                stays = await self._answer(reader, writer)
        except (*_LEAVES, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        ask = Ask(reader, writer, self.rng, *_page_of(head), await reader.readexactly(size))
        number = ask.number
        if self.spell is not None:
            self.touched.setdefault(number, set())
        behaviour = self.spell.choose(ask) if self.spell else self.honest(ask)
        self.open[number] += 1
        try:
            if behaviour is None:
                await self._forward(ask, head)
                return False
            self.touched.setdefault(number, set()).add(behaviour.__name__)
            self.done[behaviour.__name__] += 1
            await behaviour(ask)
        finally:
            self.open[number] -= 1
        return ask.stays

    async def _forward(self, ask: Ask, head: bytes) -> None:
        """Have the simulated engine answer, on a connection for this request alone. It ends with the gateway's."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.engine.port)
        copies: list[asyncio.Task[None]] = []
        try:
            writer.write(head[:-2] + b"Connection: close\r\n\r\n" + ask.body)
            for source, target in ((ask.reader, writer), (reader, ask.writer)):
                copies.append(asyncio.create_task(_copy(source, target)))
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.close()
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(*_LEAVES):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


def _page_of(head: bytes) -> tuple[Page, str]:
    path = head.split(b" ", 2)[1].decode("latin-1").partition("?")[0]
    pages = {"/metrics": Page.METRICS, "/v1/models": Page.MODELS, "/version": Page.VERSION, "/health": Page.HEALTH}
    return pages.get(path, Page.ANSWER), path


def as_vllm(ask: Ask) -> Behaviour | None:
    """What vLLM does and a simulated engine does not: it wraps its own 400 for a grammar in an error event."""
    invalid = ask.page is Page.ANSWER and b'"type": "foo"' in ask.body and ask.path == "/v1/messages" and ask.stream
    return grammar_error if invalid else None


async def grammar_error(ask: Ask) -> None:
    """Answer 200 and an error event, as vLLM 0.32 does."""
    text = "2 validation errors for ChatCompletionStreamResponse\n  input_value={'error': {'message': 'Grammar error: "
    text += "Invalid type: foo', 'type': 'BadRequestError', 'param': None, 'code': 400}}, input_type=dict]"
    event = dumped({"type": "error", "error": {"type": "internal_error", "message": text}})
    await ask.head(kind="text/event-stream; charset=utf-8")
    await ask.chunk(b"event: error\ndata: " + event + b"\n\n")
    await ask.chunk(b"")
    ask.stays = True


def dumped(value: Any) -> bytes:
    """JSON without blanks, as vLLM writes it."""
    return json.dumps(value, separators=(",", ":")).encode()
