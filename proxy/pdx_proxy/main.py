"""The gateway as a program: control side (endpoints, warm-up, admin port) and its workers."""

import asyncio
import signal
import sys

import uvloop
from aiohttp import web

from pdx_proxy.admin import create_admin
from pdx_proxy.endpoints import Endpoint, Snapshot
from pdx_proxy.fleet import Fleet, LocalFleet, ProcessFleet, address_of, bind
from pdx_proxy.settings import Settings
from pdx_proxy.warmup import Warmer
from pdx_proxy.worker import create_backend, spare_collector


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; 1 and one sentence on stderr when a port is taken."""
    try:
        uvloop.run(_serve(settings))
    except OSError as error:
        where = error.filename or f"{settings.listen} or {settings.admin}"
        sys.stderr.write(f"pdx gateway: cannot listen on {where}: {error.strerror}.\n")
        return 1
    return 0


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    control = await Control.start(settings)
    spare_collector()
    sys.stdout.write(f"pdx gateway: serving on http://{settings.listen}, admin on http://{settings.admin}\n")
    sys.stdout.flush()
    await stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await control.stop()


class Control:
    """Owner of the warmer, the workers and the admin port."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fleet: Fleet | None = None
        self._runner: web.AppRunner | None = None
        self._backend = create_backend(settings, lambda *_: None)
        self.warmer = Warmer(self._backend, settings.endpoints, self._publish)
        self.listen = settings.listen
        """Where clients are served, with the port in force."""
        self.admin = settings.admin

    @classmethod
    async def start(cls, settings: Settings) -> "Control":
        """Bind both ports, start the workers and begin to warm; raises OSError."""
        control = cls(settings)
        admin = bind(settings.admin, shared=False)
        try:
            if settings.workers == 1:
                control._fleet = await LocalFleet.start(settings, control._suspect)
            else:
                control._fleet = ProcessFleet(settings, control.warmer)
        except OSError:
            admin.close()
            raise
        fleet = control._fleet
        control.listen, control.admin = fleet.address, address_of(admin)
        app = create_admin(settings, lambda: control.warmer.snapshot, fleet.report)
        control._runner = web.AppRunner(app, access_log=None)
        await control._runner.setup()
        await web.SockSite(control._runner, admin).start()
        control._publish(control.warmer.snapshot)
        control.warmer.start()
        return control

    async def stop(self) -> None:
        """End everything, letting open requests finish."""
        await self.warmer.stop()
        self._backend.pool.close()
        if self._fleet is not None:
            await self._fleet.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    def _publish(self, snapshot: Snapshot) -> None:
        if self._fleet is not None:
            self._fleet.apply(snapshot)

    def _suspect(self, endpoint: Endpoint, reason: str) -> None:
        self.warmer.suspect(endpoint.name, endpoint.start, reason)
