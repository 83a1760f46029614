"""One worker: it serves the port with the snapshots that the control side sends."""

import asyncio
import ctypes
import gc
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from pdx_api.settings.gateway import Tracing as TracingSettings
from pdx_proxy.admission.admission import Admission
from pdx_proxy.admission.api_keys import Keyring
from pdx_proxy.admission.quarantine import Verdicts
from pdx_proxy.admission.usage import Usage
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.prefill.shared_log import SharedLog
from pdx_proxy.config.settings import Settings
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.upstreams import create_engines
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.downstream.certificate import certificate_of
from pdx_proxy.http.downstream.listener import Listener
from pdx_proxy.process.guard import Guard
from pdx_proxy.process.quarantine import WorkerEventSink
from pdx_proxy.serving.gateway import Gateway
from pdx_proxy.serving.isolation import Isolation
from pdx_proxy.telemetry.trace_context import TraceSampler
from pdx_proxy.telemetry.tracing import Tracing

_YOUNG_OBJECTS: Final = 10_000
"""New objects that start a run of the garbage collector. It may be rare, because requests that succeed leave no cycles.
Of 50,000 that failed requests have left, one run takes 50 to 95 ms of CPU on a busy machine."""
_TRIM_BYTES: Final = 32 << 20
"""Freed memory that the process keeps."""
_MAP_BYTES: Final = 4 << 20
"""Size from which an allocation is mapped by the kernel each time. Most bodies are smaller."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_SWITCH_SECONDS: Final = 0.0005
"""How long a thread may keep the interpreter while another needs it."""
_LAST_SECONDS: Final = 0.5
"""Least time for settlements after the shutdown deadline has cut requests off."""


def spare_collector() -> None:
    """Exclude the program's own objects from garbage collection and run it rarely: it took a tenth of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


def keep_memory() -> None:
    """Let the C library keep freed memory. Otherwise each copy of a body of 1 MB costs page faults: 1.5 ms, not 0.4.

    A C library without mallopt stays as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAP_BYTES)


def create_tracing(settings: TracingSettings | None, clock: Callable[[], float], workers: int) -> Tracing | None:
    """The traces of a worker; None if there is no receiver."""
    if settings is None:
        return None
    from pdx_proxy.telemetry.span_exporter import OTLPSink  # OpenTelemetry's SDK, for workers that use it only

    # The thread encodes in Python, 90 us for each sampled request. The event loop must not wait for it for 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    bits = random.Random(os.urandom(16)).getrandbits  # noqa: S311 (IDs of traces are no secrets)
    return Tracing(TraceSampler(settings.ratio, bits), OTLPSink(settings.endpoint), clock, time.time, workers)


class Worker:
    """Owner of a listening server, its serving state and its settlements."""

    def __init__(
        self,
        settings: Settings,
        notify: WorkerEventSink,
        load: Load | None = None,
        usage: Usage | None = None,
        log: SharedLog | None = None,
    ) -> None:
        self._settings = settings
        self._guard = Guard()
        self._balancing: dict[str, dict[str, Any]] = {"prefill": {"tokens": {}}, "decode": {}}
        """The last reports of the balancers."""
        self._engines = create_engines(settings, notify, load)
        self._tracing = create_tracing(settings.tracing, self._engines.clock, settings.workers)
        self._serving = WorkerState(self._engines, log, self._tracing)
        self._settlements = Settlements(self._serving)
        # A random start, or several gateways would all select the same engine first.
        cursor = int.from_bytes(os.urandom(4))
        self._admission = Admission(
            settings.limits, usage or Usage(), self._engines.load, self._serving.counters, self._engines.clock
        )
        self._isolation = Isolation(self._serving, self._admission, notify)
        # The control side logs what is wrong with a key file or a certificate.
        self._keyring = Keyring(settings.keys, self._engines.pool, lambda _: None, self._admission.set_weights)
        self._certificate = certificate_of(settings.tls, lambda _: None)
        self._gateway = Gateway(self._settlements, self._admission, self._isolation, self._keyring, cursor)
        self._listener = Listener(
            self._gateway.serve, max_body_bytes=settings.limits.max_body_bytes, send_seconds=settings.send_seconds
        )

    async def start(self, sock: socket.socket) -> None:
        """Serve a bound socket."""
        self._keyring.start()
        if self._certificate is not None:
            self._certificate.start()
        await self._listener.start(sock, self._certificate.context if self._certificate is not None else None)

    def apply(self, snapshot: Snapshot) -> None:
        """Put a snapshot in force. A part of it that fails ends no worker."""
        with self._guard.step("The use of the latest endpoints"):
            self._serving.apply(snapshot)
            self._isolation.observe(snapshot)
        self._admission.serve_next()

    def apply_load(self, reports: LoadReports) -> None:
        """Put the engines' latest load reports in force. If that fails, the limits stay as they are."""
        with self._guard.step("The use of the engines' load reports"):
            self._serving.apply_load(reports)
        self._admission.senders.advance(self._engines.clock())
        self._admission.serve_next()

    def apply_verdicts(self, verdicts: Verdicts) -> None:
        """Isolate these requests and clients."""
        self._isolation.apply(verdicts)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._admission.usage.waiting

    def report(self) -> dict[str, Any]:
        """Return the counters and the legs in flight."""
        serving, load = self._serving, self._engines.load
        legs = {"prefilling": dict(load.at_prefill), "blocked": dict(load.blocked)}
        for name, balancer in (("prefill", serving.chooser.prefills), ("decode", serving.chooser.decodes)):
            with self._guard.step(f"The report of the {name} balancer"):
                self._balancing[name] = balancer.report()
        spans = {} if self._tracing is None else {"spans": self._tracing.report()}
        senders = {"senders": self._admission.senders.report()}
        return {**serving.counters.report(load.view()), **legs, **self._balancing, **spans, **senders}

    def drain(self) -> None:
        """Serve on, and let clients connect to other gateways."""
        self._gateway.draining = True

    async def stop(self, listener_closed: Callable[[], None] = lambda: None) -> None:
        """Accept no new connection, finish open requests and settlements, all within the shutdown deadline.

        `listener_closed` is called as soon as the listening socket has no connection left to accept.
        """
        loop, seconds = asyncio.get_running_loop(), self._settings.shutdown_seconds
        ends = loop.time() + seconds
        await self._listener.close(min(self._settings.handshake_seconds, seconds))
        listener_closed()
        await self._listener.finish(max(ends - loop.time(), 0.0))
        try:
            async with asyncio.timeout_at(max(ends, loop.time() + _LAST_SECONDS)):
                await self._settlements.drain()
        except TimeoutError:
            pass
        self._keyring.stop()
        if self._certificate is not None:
            self._certificate.stop()
        self._engines.pool.close()
        if self._tracing is not None:
            await self._tracing.sink.stop()
