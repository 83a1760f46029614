"""One worker: serves the port with what the control side tells it of the endpoints."""

import asyncio
import ctypes
import gc
import os
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from pdx_proxy.admission.admission import Admission, WorkerLimits
from pdx_proxy.admission.api_keys import Keyring
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.config.settings import Settings
from pdx_proxy.endpoints.events import EventSink
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engines import create_engines
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.downstream.listener import Listener
from pdx_proxy.serving.gateway import Gateway

_YOUNG_OBJECTS: Final = 50_000
"""How many more objects than before make the collector look for cycles: requests leave none behind."""
_TRIM_BYTES: Final = 32 << 20
"""How much freed memory may stay with the process."""
_MAP_BYTES: Final = 4 << 20
"""From which size on memory is asked of the kernel for each use: bodies are mostly smaller."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LAST_SECONDS: Final = 0.5
"""How long what has been cut off at the end of the time for shutting down is settled at least."""


def spare_collector() -> None:
    """Let the garbage collector pass over what the program consists of, and look seldom: it is a tenth of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


def keep_memory() -> None:
    """Have the C library keep what is freed, or a body of 1 MB is paid for page by page, at each of its copies.

    That is 1.5 ms instead of 0.4. A C library without these options has its own ways.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAP_BYTES)


class Worker:
    """Owner of a listening server, what it serves with, and its settlements."""

    def __init__(self, settings: Settings, notify: EventSink, load: Load | None = None) -> None:
        self._settings = settings
        self._engines = create_engines(settings, notify, load)
        self._serving = ServingState(self._engines)
        self._settlements = Settlements(self._serving)
        # A start of its own, or several gateways would all call the same engine first.
        turn = int.from_bytes(os.urandom(4))
        share = WorkerLimits.of(settings.limits, settings.workers)
        self._admission = Admission(share, self._serving.counters, self._engines.clock)
        # What is wrong with a file is told by the control side.
        self._keyring = Keyring(settings.keys, self._engines.pool, lambda _: None)
        self._gateway = Gateway(self._serving, self._settlements, self._admission, self._keyring, turn)
        self._listener = Listener(self._gateway.serve, max_body_bytes=settings.limits.max_body_bytes)
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serve a bound socket."""
        self._keyring.start()
        factory = cast("Callable[[], asyncio.Protocol]", self._listener)
        self._server = await asyncio.get_running_loop().create_server(factory, sock=sock, backlog=1024)

    def apply(self, snapshot: Snapshot) -> None:
        """Take a new view of the endpoints."""
        self._serving.apply(snapshot)
        self._admission.resize(len(snapshot.decode))

    def apply_load(self, reports: LoadReports) -> None:
        """Take the engines' latest load reports."""
        self._serving.apply_load(reports)

    def report(self) -> dict[str, Any]:
        """The counters and the legs in flight."""
        return self._serving.counters.report(self._engines.load.view())

    def drain(self) -> None:
        """Serve on, and have clients connect elsewhere from now on."""
        self._gateway.draining = True

    async def stop(self) -> None:
        """Accept nothing new, finish what runs and settle what is left, within the time for shutting down."""
        if self._server is not None:
            self._server.close()
        self._listener.stop()
        loop, seconds = asyncio.get_running_loop(), self._settings.shutdown_seconds
        ends = loop.time() + seconds
        await self._listener.finish(seconds)
        try:
            async with asyncio.timeout_at(max(ends, loop.time() + _LAST_SECONDS)):
                await self._settlements.drain()
        except TimeoutError:
            pass
        self._keyring.stop()
        self._engines.pool.close()
