"""Sidecars in front of simulated engines, as a service mesh adds them. They answer marked requests by themselves."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from pdx_api.names import Role
from pdx_proxy.config.settings import Address
from pdx_sim import SimEngine
from tests.component.harness import World, spec_of
from tests.component.servers import serving

MARK: Final = "MARK"
"""The prompt of a marked request contains it."""
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CONNECTION: Final = re.compile(rb"(?i)\r\nconnection:[^\r]*")


def answer_of(status: int, kind: str, body: bytes, more: str = "") -> bytes:
    """An answer of a sidecar's own; `more` has further header lines."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Sidecar:
    """The sidecar of one engine."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine
        self.is_prefill = engine.settings.role is Role.PREFILL
        self.answer = b""
        """Its own answer to marked requests; empty: the engine answers them."""
        self.closes = False
        """Whether it closes the connection behind the engine's answer to a marked request, without having said so."""
        self.asked = 0
        """Marked requests so far."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            marked = MARK.encode() in body
            self.asked += marked
            if marked and self.answer:
                writer.write(self.answer)
                await writer.drain()
                continue
            await self._pass_on(head, body, writer)
            if marked and self.closes:
                return

    async def _pass_on(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self._engine.port)
        try:
            down.write(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
            writer.write(_CONNECTION.sub(b"", await up.readuntil(b"\r\n\r\n")))
            while data := await up.read(65536):
                writer.write(data)
            await writer.drain()
        finally:
            down.close()


@asynccontextmanager
async def sidecars(world: World, **settings: Any) -> AsyncIterator[list[Sidecar]]:
    """Start the world's gateway, which reaches each engine through a sidecar. What those refuse, engines never see."""
    async with AsyncExitStack() as stack:
        made, specs = [Sidecar(engine) for engine in world.engines], []
        for sidecar, engine in zip(made, world.engines, strict=True):
            port = await stack.enter_async_context(serving(sidecar.serve))
            specs.append(replace(spec_of(engine, world.order), address=Address("127.0.0.1", port)))
        await world.start_gateway(endpoints=tuple(specs), **settings)
        yield made
        await world.session.close()
        await world.gateway.stop()
        world.control = None
