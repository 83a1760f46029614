"""A D that answers warm-ups, and every other request with the next of its scripts, byte for byte."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from tests.component.harness import World, eventually
from tests.component.servers import serving

STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST: Final = b"0\r\n\r\n"
TOKEN: Final = b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
DONE: Final = b"data: [DONE]\n\n"
_WARM: Final = b'{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":null}'


def chunk(data: bytes) -> bytes:
    """One chunk of an answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(frozen=True)
class Script:
    """An answer. Without `closes` the connection stays open behind its bytes."""

    data: bytes
    closes: bool = False
    then: bytes = b""
    """Sent when the engine's `proceed` is set."""


class ScriptedEngine:
    """The engine: one connection after the other answers the scripts in order."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.requests = 0
        """Requests without warm-ups."""
        self.connections = 0
        self.connections_of: list[int] = []
        """The numbers of their connections."""
        self.proceed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        number = self.connections
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            body = json.loads(await reader.readexactly(size) or b"{}")
            if "scripted" not in body:
                framing = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_WARM)
                writer.write(b"HTTP/1.1 200 OK\r\n" + framing + _WARM)
                continue
            self.requests += 1
            self.connections_of.append(number)
            script = self.scripts.pop(0)
            writer.write(script.data)
            if script.then:
                await self.proceed.wait()
                writer.write(script.then)
            if script.closes:
                break


@asynccontextmanager
async def scripted(world: World, *scripts: Script) -> AsyncIterator[ScriptedEngine]:
    """Start the world's gateway with one scripted D, and wait until it is warm."""
    engine = ScriptedEngine(*scripts)
    async with serving(engine.serve) as port:
        spec = EndpointSpec(Address("127.0.0.1", port), Role.DECODE)
        await world.start_gateway(warm=False, endpoints=(spec,))
        await eventually(lambda: any(each.warm for each in world.gateway.registry.snapshot.everything))
        yield engine
        await world.session.close()
        await world.gateway.stop()
        world.control = None
