"""Causes of the faults that somebody chose who had not seen the rules."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

import aiohttp

from pdx_proxy.config.settings import Address
from pdx_proxy.process.control import Control
from pdx_sim import FaultKind
from tests.component.harness import Shape, spec_of
from tests.dashboards.scene import Scene, named

_HANDOFF_SECONDS: Final = 4.0
_BETWEEN_BREAKS: Final = 1.5
"""Seconds. A quarter of the breaks strike whole answers, which are repeated; a window of the rules needs two others."""


class Relay:
    """The way of one gateway to one engine: a port that passes bytes on until the way is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = Address("127.0.0.1", 0)

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Refuse connections, and lose the open ones."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers |= {writer, back}
            await asyncio.gather(_pass(reader, back), _pass(there, writer))
            self._writers -= {writer, back}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def second_gateway(scene: Scene) -> AsyncIterator[None]:
    """Another gateway for the same engines; `cut_off` cuts its ways to them."""
    async with AsyncExitStack() as stack:
        specs = []
        for engine, pod in named(scene.name, scene.world):
            relay = Relay(engine.port)
            await relay.start()
            stack.callback(relay.cut)
            scene.relays.append(relay.cut)
            specs.append(replace(spec_of(engine, scene.world.order), address=relay.address, pod=pod))
        settings = replace(scene.world.gateway._settings, endpoints=tuple(specs))
        control = await Control.start(settings)
        stack.push_async_callback(control.stop)
        scene.others.append(control)
        yield


async def cut_off(scene: Scene) -> None:
    """The second gateway reaches no engine any more."""
    for cut in scene.relays:
        cut()


async def slow_kv(scene: Scene) -> None:
    """KV moves, but each hand-off takes seconds."""
    station = scene.world.d.station
    station.settings = replace(station.settings, transfer_seconds=_HANDOFF_SECONDS)


async def lose_some_streams(scene: Scene) -> None:
    """One of two decode engines breaks a stream every few seconds: about 4 % of all requests."""
    while True:
        scene.world.fault(scene.world.decode[-1], FaultKind.DIE_AFTER_EVENTS, events=4)
        await asyncio.sleep(_BETWEEN_BREAKS)


async def send_nonsense(scene: Scene) -> None:
    """A client whose every request is wrong or given up."""
    url = f"{scene.world.url}{Shape().path}"
    wrong = (Shape().body(tokens=8, model="gpt-5"), b'{"model": "sim", ', Shape().body(tokens=10_000_000))
    number = 0
    while True:
        number += 1
        with suppress(aiohttp.ClientError, TimeoutError):
            if number % 4:
                await scene.world.call("POST", url, wrong[number % 4 - 1])
            else:
                async with asyncio.timeout(0.5):
                    await scene.world.call("POST", url, Shape(stream=True).body(tokens=60))
        await asyncio.sleep(0.1)
