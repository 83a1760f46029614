"""The workers, as the control side sees them: one in this process, or several in processes of their own."""

import asyncio
import logging
import socket
import sys
from typing import Any, Protocol

from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.shared_load import LoadTable
from pdx_proxy.config.settings import Address, Settings
from pdx_proxy.endpoints.events import EventSink, LostHandoff, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.process.channel import Channel, Drain, Report, ReportRequest
from pdx_proxy.process.worker import Worker
from pdx_proxy.telemetry.counters import add_reports

_log = logging.getLogger(__name__)
_BACKLOG = 1024
_REPORT_SECONDS = 2.0
_RESTART_SECONDS = 0.2
_LONGEST_RESTART_SECONDS = 10.0


class Workers(Protocol):
    """Some workers."""

    @property
    def address(self) -> Address:
        """Where clients are served, with the port in force."""

    def apply(self, snapshot: Snapshot) -> None:
        """Give every worker a new view of the endpoints."""

    def apply_load(self, reports: LoadReports) -> None:
        """Give every worker the engines' latest load reports."""

    async def report(self) -> dict[str, Any]:
        """The sum of the workers' reports."""

    def drain(self) -> None:
        """Serve on, and have clients connect elsewhere from now on."""

    async def stop(self) -> None:
        """Let every worker finish what it serves, and end it."""


def bind(address: Address, *, shared: bool) -> socket.socket:
    """A bound socket; `shared` lets further sockets of this process's user bind the same port. Raises OSError."""
    family, kind, proto, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, error.strerror, str(address)) from error
    sock.setblocking(False)
    return sock


def address_of(sock: socket.socket) -> Address:
    """Where a bound socket listens."""
    host, port = sock.getsockname()[:2]
    return Address(host, port)


class LocalWorkers:
    """One worker in this process."""

    def __init__(self, worker: Worker, address: Address) -> None:
        self._worker = worker
        self.address = address

    @classmethod
    async def start(cls, settings: Settings, notify: EventSink) -> "LocalWorkers":
        """Serve the port from this process; raises OSError when it is taken."""
        sock = bind(settings.listen, shared=False)
        address = address_of(sock)
        worker = Worker(settings, notify)
        await worker.start(sock)
        return cls(worker, address)

    def apply(self, snapshot: Snapshot) -> None:
        self._worker.apply(snapshot)

    def apply_load(self, reports: LoadReports) -> None:
        self._worker.apply_load(reports)

    async def report(self) -> dict[str, Any]:
        return self._worker.report()

    def drain(self) -> None:
        self._worker.drain()

    async def stop(self) -> None:
        await self._worker.stop()


class _WorkerSupervisor:
    """A worker process, started anew whenever it dies."""

    def __init__(self, settings: Settings, number: int, listener: socket.socket, fleet: "ProcessWorkers") -> None:
        self._settings = settings
        self._number = number
        self._listener = listener
        self._fleet = fleet
        self._channel: Channel | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        """The report that has been asked for; everybody who asks meanwhile awaits the same."""
        self.last: dict[str, Any] | None = None
        """The report received last from the process that is alive."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        pause = _RESTART_SECONDS
        loop = asyncio.get_running_loop()
        while not self._fleet.stopping:
            began = loop.time()
            code = await self._run_process()
            self._fleet.retire(self._number, self.last)
            self.last = self._answer = None
            if self._fleet.stopping:
                break
            pause = _RESTART_SECONDS if loop.time() - began > _LONGEST_RESTART_SECONDS else pause * 2
            pause = min(pause, _LONGEST_RESTART_SECONDS)
            _log.warning("a worker ended with code %s; another starts in %g s.", code, pause)
            await asyncio.sleep(pause)
        self._listener.close()

    async def _run_process(self) -> int:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fds = (self._listener.fileno(), theirs.fileno(), self._fleet.table.fd)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "pdx_proxy.process.worker_process"),
            *map(str, (*fds, self._number)),
            pass_fds=fds,
        )
        theirs.close()
        self._channel = await Channel.over(ours)
        self._channel.send(self._settings)
        self._channel.send(self._fleet.snapshot)
        self._channel.send(self._fleet.load_reports)
        if self._fleet.draining:
            self._channel.send(Drain())
        if self._fleet.stopping:
            self._channel.close()
        await self._listen(self._channel)
        self._channel.close()
        self._channel = None
        return await process.wait()

    async def _listen(self, link: Channel) -> None:
        while (message := await link.receive()) is not None:
            if isinstance(message, Suspect | LostHandoff):
                self._fleet.notify(message)
            elif isinstance(message, Report):
                self.last = message.content
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message.content)

    def send(self, message: object) -> None:
        """Send to the process, if it is there."""
        if self._channel is not None:
            self._channel.send(message)

    async def report(self) -> dict[str, Any] | None:
        """A fresh report, or the last one if the process does not answer."""
        if self._channel is None:
            return self.last
        if self._answer is None or self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
            self._channel.send(ReportRequest())
        answer = self._answer
        await asyncio.wait([answer], timeout=_REPORT_SECONDS)
        return answer.result() if answer.done() else self.last

    async def stop(self) -> None:
        """Close the link, which tells the process to finish."""
        if self._channel is not None:
            self._channel.close()
        await self.task


class ProcessWorkers:
    """Several worker processes that share the serving port."""

    def __init__(self, settings: Settings, notify: EventSink, table: LoadTable) -> None:
        with bind(settings.listen, shared=False) as sock:
            self.address = address_of(sock)
        self.notify = notify
        self.table = table
        self._retired: list[dict[str, Any]] = []
        self.snapshot = Snapshot()
        self.load_reports = LoadReports()
        self.draining = False
        self.stopping = False
        sockets = [bind(self.address, shared=True) for _ in range(settings.workers)]
        for sock in sockets:
            # At once, or /readyz would call clients who are refused until a worker has started.
            sock.listen(_BACKLOG)
        self._seats = [_WorkerSupervisor(settings, number, sock, self) for number, sock in enumerate(sockets)]

    def apply(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        if not self.stopping:
            for seat in self._seats:
                seat.send(snapshot)

    def apply_load(self, reports: LoadReports) -> None:
        self.load_reports = reports
        if not self.stopping:
            for seat in self._seats:
                seat.send(reports)

    def retire(self, number: int, report: dict[str, Any] | None) -> None:
        """Keep what a process that is gone had counted; nothing of it is in flight any more."""
        self.table.forget(number)
        if report is not None:
            self._retired.append({**report, "inFlight": {}, "legs": {}, "held": {}})
            self._retired = [add_reports(self._retired)]

    async def report(self) -> dict[str, Any]:
        reports = await asyncio.gather(*(seat.report() for seat in self._seats))
        return add_reports([*self._retired, *(report for report in reports if report is not None)])

    def drain(self) -> None:
        self.draining = True
        for seat in self._seats:
            seat.send(Drain())

    async def stop(self) -> None:
        self.stopping = True
        await asyncio.gather(*(seat.stop() for seat in self._seats))
