"""The gateway as a program: control side (endpoints, warm-up, admin port) and its workers."""

import asyncio
import contextlib
import signal
import sys
from typing import Any

import uvloop
from aiohttp import web

from pdx_proxy.admission.api_keys import KeyFileError, Keyring, check
from pdx_proxy.balancing.shared_load import LoadTable
from pdx_proxy.config.settings import Settings
from pdx_proxy.discovery.pod_watcher import Discovery, DiscoveryError, log_warning
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engines import create_engines
from pdx_proxy.health.load_poller import EngineLoads
from pdx_proxy.health.transfer_share import TransferShare
from pdx_proxy.health.warmup import EndpointRegistry
from pdx_proxy.http.downstream.listener import raise_file_limit
from pdx_proxy.process.admin import create_admin
from pdx_proxy.process.worker import keep_memory, spare_collector
from pdx_proxy.process.workers import LocalWorkers, ProcessWorkers, Workers, address_of, bind
from pdx_proxy.telemetry.access_log import configure_logs
from pdx_proxy.verification.prober import TransferProber


def run(settings: Settings, discovery: Discovery | None = None) -> int:
    """Serve until SIGTERM or SIGINT.

    With one sentence on stderr 1, when a port is taken or discovery can not begin; 2, when a file of keys is wrong.
    """
    try:
        configure_logs(settings)
        check(settings.keys)
        raise_file_limit()
        return uvloop.run(_serve(settings, discovery))
    except KeyFileError as error:
        log_warning(str(error).removesuffix("."))
        return 2
    except OSError as error:
        where = error.filename or f"{settings.listen} or {settings.admin}"
        log_warning(f"cannot listen on {where}: {error.strerror}")
        return 1


async def _serve(settings: Settings, discovery: Discovery | None) -> int:
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    control = await Control.start(settings, discovery)
    keep_memory()
    spare_collector()
    sys.stdout.write(f"pdx gateway: serving on http://{settings.listen}, admin on http://{settings.admin}\n")
    sys.stdout.flush()
    failure = await _until_told(signals, control)
    if failure is None:
        control.drain()
        with contextlib.suppress(TimeoutError):  # a second signal ends the wait
            await asyncio.wait_for(signals.get(), settings.drain_seconds)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await control.stop()
    if failure is not None:
        log_warning(str(failure))
    return 1 if failure else 0


async def _until_told(signals: "asyncio.Queue[None]", control: "Control") -> DiscoveryError | None:
    """Wait for a signal, or for discovery to fail for good."""
    told = asyncio.create_task(signals.get())
    tasks: list[asyncio.Task[None]] = [told, *([control.discovering] if control.discovering else [])]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    if told.done():
        return None
    told.cancel()
    try:
        await tasks[1]
    except DiscoveryError as failure:
        return failure
    raise AssertionError("discovery ends by failing only")


class Control:
    """Owner of discovery, the warmer, the workers and the admin port."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fleet: Workers | None = None
        self._runner: web.AppRunner | None = None
        self._engines = create_engines(settings, lambda _: None)
        self._keyring = Keyring(settings.keys, self._engines.pool, log_warning)
        self._table = LoadTable(settings.workers) if settings.workers > 1 else None
        self.registry = EndpointRegistry(self._engines, settings.endpoints, self._publish, table=self._table)
        self._loads = EngineLoads(self._engines, lambda: self.registry.snapshot, self._publish_load)
        self.prober = TransferProber(self._engines, lambda: self.registry.snapshot)
        self.transfer_share = TransferShare(self._engines, lambda: self.registry.snapshot, self._workers)
        self.discovering: asyncio.Task[None] | None = None
        """Runs as long as the gateway does, unless discovery fails for good."""
        self.draining = False
        self.listen = settings.listen
        """Where clients are served, with the port in force."""
        self.admin = settings.admin

    @classmethod
    async def start(cls, settings: Settings, discovery: Discovery | None = None) -> "Control":
        """Bind both ports, start the workers, and begin to find and warm engines; raises OSError."""
        control = cls(settings)
        admin = bind(settings.admin, shared=False)
        try:
            if control._table is None:
                control._fleet = await LocalWorkers.start(settings, control.registry.hear)
            else:
                control._fleet = ProcessWorkers(settings, control.registry.hear, control._table)
        except OSError:
            admin.close()
            raise
        fleet = control._fleet
        control.listen, control.admin = fleet.address, address_of(admin)
        app = create_admin(
            settings, lambda: control.registry.snapshot, control._report, lambda: control.draining, control.prober
        )
        control._runner = web.AppRunner(app, access_log=None)
        await control._runner.setup()
        await web.SockSite(control._runner, admin).start()
        control._keyring.start()
        control._publish(control.registry.snapshot)
        control.registry.start()
        control._loads.start()
        control.prober.start()
        control.transfer_share.start()
        if discovery is not None:
            control.discovering = asyncio.create_task(discovery.run(control.registry.update))
        return control

    def drain(self) -> None:
        """Say that this gateway is going away, and serve on."""
        self.draining = True
        if self._fleet is not None:
            self._fleet.drain()

    async def stop(self) -> None:
        """End everything, letting open requests finish: until then deletions of engines are still seen."""
        self.draining = True
        await self.prober.stop()
        await self.transfer_share.stop()
        if self._fleet is not None:
            await self._fleet.stop()
        if self.discovering is not None:
            self.discovering.cancel()
            await asyncio.wait([self.discovering])
        await self.registry.stop()
        await self._loads.stop()
        self._keyring.stop()
        self._engines.pool.close()
        if self._table is not None:
            self._table.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _report(self) -> dict[str, Any]:
        own = {"ejections": dict(self.registry.ejections), "canary": self.prober.report()}
        return {**await self._workers(), **own, "arrivals": self.transfer_share.as_json()}

    async def _workers(self) -> dict[str, Any]:
        assert self._fleet is not None
        return await self._fleet.report()

    def _publish(self, snapshot: Snapshot) -> None:
        self._engines.apply(snapshot)
        if self._fleet is not None:
            self._fleet.apply(snapshot)

    def _publish_load(self) -> None:
        if self._fleet is not None:
            self._fleet.apply_load(self._loads.reports)
