"""A simulated engine: it starts, stops, dies and restarts."""

import asyncio
import math
import os
import random
import socket
import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Self

from aiohttp import web

from pdx_api.names import Role
from pdx_sim.api.server import Api, Seen
from pdx_sim.core.blocks import BlockPool
from pdx_sim.core.counters import Counts, metrics_text
from pdx_sim.core.engine_core import Core
from pdx_sim.core.leases import Leases
from pdx_sim.core.prefix_cache import PrefixCache
from pdx_sim.core.sequence import Finish
from pdx_sim.core.timings import Timings
from pdx_sim.faults import FaultKind, Faults
from pdx_sim.settings import SimSettings, TransferMode
from pdx_sim.transfer.bootstrap import Bootstrap
from pdx_sim.transfer.connector import KVConnector, Station
from pdx_sim.transfer.mooncake import MooncakeConnector
from pdx_sim.transfer.ports import listen_steadily
from pdx_sim.transfer.pull import PullConnector
from pdx_sim.transfer.push import PushConnector
from pdx_sim.transfer.side_channel import Message, SideChannel
from pdx_sim.transfer.storage import Storage, StorageConnector

_SCALING: Final = "The model is currently scaling. Please try again later."
_RETIRED: Final = "This data-parallel rank has been retired and is awaiting shutdown."
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: a close sends RST."""
_BACKLOG: Final = 2048
"""Connections that may wait to be accepted: uvicorn's default, which vLLM keeps. Beyond it, a client tries again after
a second."""
_TICKS_PER_LEASE: Final = 30
_IDLE_POLL: Final = 0.01
"""Seconds."""
_LONGEST_TICK: Final = 0.5
"""Seconds."""


_CONNECTORS: Final[dict[TransferMode, Callable[[Station], KVConnector]]] = {
    TransferMode.PULL: PullConnector,
    TransferMode.PUSH: PushConnector,
    TransferMode.MOONCAKE: MooncakeConnector,
}


class ListenError(OSError):
    """The engine cannot listen on an address; the text names the address and the reason."""


class SimEngine:
    """One engine. `counts`, `faults` and `seen` outlive a restart; identity and KV do not."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        self.counts = Counts()
        self.timings = Timings(settings.model, settings.kv_bytes_per_token, settings.transfer_metrics)
        at_once: dict[FaultKind, Callable[[float], None]] = {
            FaultKind.REFUSE: self._refuse,
            FaultKind.HANG_CORE: self._hang,
            FaultKind.BLOCK_TRANSFER: self._block,
            FaultKind.DROP_TRANSFER: self._drop,
            FaultKind.SCALING: partial(self._scale, _SCALING),
            FaultKind.RETIRED: partial(self._scale, _RETIRED),
        }
        self.faults = Faults(random.Random(settings.seed), at_once)  # noqa: S311 (a repeatable simulation)
        self.seen: deque[Seen] = deque(maxlen=settings.record)
        """The most recent generation requests, as they were received."""
        self.draining = False
        self.scaling = ""
        """What every request gets while ranks are added, or once this one was removed; empty: it serves."""
        self.dead = False
        """Whether a request has killed the EngineCore."""
        self.port = settings.port
        self.side_channel_port = settings.side_channel_port
        """Port of the side channel, or of the bootstrap, that peers use."""
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._background: list[asyncio.Task[None]] = []
        self._reopening: asyncio.Task[None] | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self.last_metrics = ""
        """The page /metrics as it was when the core began to hang; empty while it runs."""
        self._renew()

    def _renew(self) -> None:
        """Begin a start with a new identity and an empty KV."""
        settings = self.settings
        self.station = Station(
            settings=settings,
            counts=self.counts,
            pool=_pool(settings),
            engine_id=str(uuid.uuid4()),
            leases=Leases(settings.lease_seconds),
            timings=self.timings,
        )
        self.station.channel = SideChannel(
            self._answer_peer, settings.side_channel_seconds, settings.side_channel_timeout
        )
        self.storage = self._shared_storage() if settings.shares_storage else None
        self._bootstrap: Bootstrap | None = None
        self.connector = self._connect()
        self.core = Core(self.station, self.connector, random.Random(settings.seed))  # noqa: S311
        self.station.on_death = self.die
        self.core.wake()
        self._hang(0.0)
        self.draining = self.dead = False

    def _shared_storage(self) -> Storage:
        settings = self.settings
        return Storage(settings.storage, settings.block_size, settings.pool_has_server, settings.saves_in_background)

    def _connect(self) -> KVConnector:
        if self.storage is not None:
            return StorageConnector(self.station, self.storage)
        return _CONNECTORS[self.settings.mode](self.station)

    def _block(self, seconds: float) -> None:
        self.station.channel.block(seconds)
        if self.storage is not None:
            self.storage.block(seconds)

    def _drop(self, seconds: float) -> None:
        self.station.channel.block(seconds, drops=True)
        if self.storage is not None:
            self.storage.block(seconds)

    def _scale(self, text: str, seconds: float) -> None:
        self.scaling = text if seconds else ""

    def die(self) -> None:
        """The EngineCore dies: what runs ends with an error, and every further request is refused."""
        self.dead = True
        self.core.end_all(Finish.ERROR)

    @property
    def url(self) -> str:
        """Base URL of the HTTP API."""
        return f"http://{self.settings.host}:{self.port}"

    @property
    def is_listening(self) -> bool:
        """Whether the HTTP port accepts connections."""
        return self._listener is not None

    @property
    def engine_id(self) -> str:
        """Identity of this start."""
        return self.station.engine_id

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the side channel and the HTTP port. Raises ListenError, and leaves nothing open then."""
        try:
            await self._open()
        except ListenError:
            if self._runner is not None:
                await self._runner.cleanup()
            await self._end()
            raise
        self._background = [asyncio.create_task(self._tick())]

    async def _open(self) -> None:
        if self.settings.connected and self.storage is None:
            await self._open_side_channel()
        self._runner = web.AppRunner(
            Api(self).application(),
            handler_cancellation=True,
            keepalive_timeout=self.settings.keepalive_seconds,
            access_log=None,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        await self._listen()

    async def _open_side_channel(self) -> None:
        """With Mooncake, P's bootstrap has the fixed port, and the side channel has another one in every start."""
        host, fixed, channel = self.settings.side_channel_host, self.side_channel_port, self.station.channel
        mooncake = self.settings.mode is TransferMode.MOONCAKE
        if not mooncake or self.settings.role is Role.DECODE:
            with _listening(host, fixed, "--side-channel"):
                self.station.port = await channel.listen(host, 0 if mooncake else fixed)
            self.side_channel_port = self.station.port
            return
        self.station.port = await channel.listen(host, 0)
        self._bootstrap = Bootstrap(self.engine_id, f"tcp://{host}:{self.station.port}")
        with _listening(host, fixed, "--side-channel"):
            self.side_channel_port = await self._bootstrap.listen(host, fixed)

    async def stop(self) -> None:
        """Stop as vLLM does on SIGTERM: drain for shutdown_seconds, abort the rest, close."""
        if self._runner is None:
            return
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.shutdown_seconds):
                await self._idle()
        self.core.end_all(Finish.ABORT)
        self._close_listener()
        await self._runner.cleanup()
        await self._end()

    async def kill(self) -> None:
        """Die: reset every connection, notify no peer, refuse connections until a restart."""
        if self._runner is None:
            return
        self._close_listener()
        for connection in getattr(self._runner.server, "connections", ()):
            _reset(connection.transport)
        await self.connector.close()  # first, so that peers are not notified of what the core cancels
        await self._close_side_channel()
        await self.core.close()
        await self._runner.cleanup()
        await self._end()

    async def restart(self) -> None:
        """Stop, and start on the same ports with a new engine id and an empty KV."""
        await self.stop()
        self._renew()
        self.counts.restarts += 1
        await self.start()

    def state(self) -> dict[str, Any]:
        """The body of /sim/state."""
        return {
            "engine_id": self.engine_id,
            "role": self.settings.role,
            "order": self.settings.order,
            "url": self.url,
            "side_channel": f"{self.settings.side_channel_host}:{self.side_channel_port}",
            "dead": self.dead,
            "hangs": self.core.hangs,
            "draining": self.draining,
            "counts": self.counts.as_json(),
            "blocks": self.station.pool.owners,
            "pinned": self.station.leases.ids,
            "stranded": list(self.station.stranded),
            "faults": [asdict(fault) for fault in self.faults.active],
        }

    async def _idle(self) -> None:
        while self.core.live or len(self.station.leases):  # noqa: ASYNC110 (rare, and two owners to watch)
            await asyncio.sleep(_IDLE_POLL)

    async def _end(self) -> None:
        self._runner = None
        self._hang(0.0)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.core.close()
        await self.connector.close()
        await self._close_side_channel()
        self.counts.pinned_lost += len(self.station.leases)
        self.counts.reset_gauges()

    async def _close_side_channel(self) -> None:
        await self.station.channel.close()
        if self._bootstrap is not None:
            await self._bootstrap.close()

    async def _listen(self) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        serve = self._runner.server

        def accept() -> asyncio.BaseProtocol:
            self.counts.connections += 1
            return serve()

        loop = asyncio.get_running_loop()
        host = self.settings.host
        with _listening(host, self.port, "--listen"):
            self._listener = await listen_steadily(
                lambda port: loop.create_server(accept, host, port, reuse_address=True, backlog=_BACKLOG), self.port
            )
        self.port = int(self._listener.sockets[0].getsockname()[1])

    def _close_listener(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _refuse(self, seconds: float) -> None:
        """Close the HTTP port for `seconds`; open connections stay. 0 reopens it."""
        if self._runner is None or (not seconds and self._listener is not None):
            return
        self._close_listener()
        self._reopening = asyncio.create_task(self._reopen(seconds))
        self._background.append(self._reopening)

    async def _reopen(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._reopening = None
        await self._listen()

    def _hang(self, seconds: float) -> None:
        """The core hangs for `seconds`; 0 ends it. Meanwhile /metrics shows what the core reported last."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        if not seconds:
            self.last_metrics = ""
            self.core.resume()
            return
        self.last_metrics = self.last_metrics or self.metrics()
        self.core.hang()
        self._resuming = asyncio.get_running_loop().call_later(seconds, self._hang, 0.0)

    def metrics(self) -> str:
        """The page /metrics."""
        text = metrics_text(self.counts, self.settings)
        return self.last_metrics or text + self.timings.text()

    def _answer_peer(self, message: Message) -> Message:
        if message["engine_id"] != self.engine_id:
            if message["op"] == "handshake":
                self.counts.handshakes_refused += 1
            return {"error": f"engine_id is {self.engine_id}, not {message['engine_id']}"}
        return self.connector.answer(message)

    async def _tick(self) -> None:
        """End the leases that are over, and call the connector's `tick`."""
        interval = min(self.settings.lease_seconds / _TICKS_PER_LEASE, _LONGEST_TICK)
        while True:
            await asyncio.sleep(interval)
            if self.core.hangs:
                continue
            now = self.station.now()
            self._expire(now)
            self.connector.tick(now)

    def end_leases(self) -> None:
        """End every lease at once, as if its time were over: for tests, which then need no short lease."""
        self._expire(math.inf)

    def _expire(self, now: float) -> None:
        for pinned in self.station.leases.expire(now):
            self.counts.expired += 1
            self.station.free(pinned.internal_id)


@contextmanager
def _listening(host: str, port: int, flag: str) -> Iterator[None]:
    """Turn a failure to listen into a ListenError that names the address and its flag."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot listen on {host}:{port}: {_reason(error)}; choose another with {flag}") from error


def _pool(settings: SimSettings) -> BlockPool:
    if settings.enable_prefix_caching:
        return PrefixCache(settings.num_blocks, settings.block_size)
    return BlockPool(settings.num_blocks)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "this is not a host name"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    # The loop's own text repeats the address.
    return os.strerror(error.errno)


def _reset(transport: asyncio.Transport | None) -> None:
    if transport is None:
        return
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
