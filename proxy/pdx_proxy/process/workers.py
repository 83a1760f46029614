"""The workers as the control side uses them: one in this process, or several processes."""

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, Final, Protocol

from pdx_proxy.admission.usage import WAITING_ROW
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.shared_load import LoadTable
from pdx_proxy.config.settings import Address, Settings
from pdx_proxy.endpoints.events import EventSink
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.process.channel import Drain
from pdx_proxy.process.supervisor import WorkerSupervisor
from pdx_proxy.process.worker import Worker
from pdx_proxy.telemetry.counters import add_reports

_BACKLOG: Final = 1024


class Workers(Protocol):
    """One worker or several."""

    @property
    def address(self) -> Address:
        """Where clients are served, with the port in force."""

    def apply(self, snapshot: Snapshot) -> None:
        """Put a snapshot in force in every worker."""

    def apply_load(self, reports: LoadReports) -> None:
        """Give every worker the engines' latest load reports."""

    @property
    def waiting(self) -> int:
        """Requests in the queues of all workers."""

    async def report(self) -> dict[str, Any]:
        """Return the sum of the workers' reports."""

    def drain(self) -> None:
        """Serve on, and let clients connect to other gateways."""

    async def stop(self) -> None:
        """Let every worker finish its open requests, then end it."""


def bind(address: Address, *, shared: bool) -> socket.socket:
    """Return a bound socket; raises OSError. `shared` lets other sockets of this user bind the same port."""
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
    """Return the address of a bound socket."""
    host, port = sock.getsockname()[:2]
    return Address(host, port)


class LocalWorkers:
    """One worker in this process."""

    def __init__(self, worker: Worker, address: Address) -> None:
        self._worker = worker
        self.address = address

    @classmethod
    async def start(cls, settings: Settings, notify: EventSink) -> "LocalWorkers":
        """Serve the port from this process; raises OSError if it is taken."""
        sock = bind(settings.listen, shared=False)
        address = address_of(sock)
        worker = Worker(settings, notify)
        await worker.start(sock)
        return cls(worker, address)

    def apply(self, snapshot: Snapshot) -> None:
        self._worker.apply(snapshot)

    def apply_load(self, reports: LoadReports) -> None:
        self._worker.apply_load(reports)

    @property
    def waiting(self) -> int:
        return self._worker.waiting

    async def report(self) -> dict[str, Any]:
        return self._worker.report()

    def drain(self) -> None:
        self._worker.drain()

    async def stop(self) -> None:
        await self._worker.stop()


class ProcessWorkers:
    """Several worker processes that share the serving port."""

    def __init__(self, settings: Settings, notify: EventSink, table: LoadTable) -> None:
        with bind(settings.listen, shared=False) as sock:
            self.address = address_of(sock)
        self._settings = settings
        self._table = table
        self._ended_reports: list[dict[str, Any]] = []
        self._snapshot = Snapshot()
        self._load_reports: LoadReports | None = None
        """The newest; None before the first, so that a worker counts its choices under the policy that it applies."""
        self._draining = False
        self._stopping = False
        sockets = [bind(self.address, shared=True) for _ in range(settings.workers)]
        for sock in sockets:
            # Listen at once: /readyz may succeed before a worker has started, and its clients must not be refused.
            sock.listen(_BACKLOG)
        self._supervisors = [
            WorkerSupervisor(
                *(number, sock, table.fd), first_messages=self._first_messages, notify=notify, ended=self._add_ended
            )
            for number, sock in enumerate(sockets)
        ]

    def apply(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._send(snapshot)

    def apply_load(self, reports: LoadReports) -> None:
        self._load_reports = reports
        self._send(reports)

    @property
    def waiting(self) -> int:
        return self._table.total(WAITING_ROW)

    async def report(self) -> dict[str, Any]:
        reports = await asyncio.gather(*(supervisor.report() for supervisor in self._supervisors))
        return add_reports([*self._ended_reports, *(report for report in reports if report is not None)])

    def drain(self) -> None:
        self._draining = True
        self._send(Drain())

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))

    def _send(self, message: object) -> None:
        if not self._stopping:
            for supervisor in self._supervisors:
                supervisor.send(message)

    def _first_messages(self) -> Iterable[object]:
        reports = (self._load_reports,) if self._load_reports is not None else ()
        drain = (Drain(),) if self._draining else ()
        return (self._settings, self._snapshot, *reports, *drain)

    def _add_ended(self, number: int, report: dict[str, Any] | None) -> None:
        """Keep the counts of a process that has ended; it has nothing in flight."""
        self._table.forget(number)
        if report is not None:
            self._ended_reports.append({**report, "inFlight": {}, "legs": {}, "held": {}})
            self._ended_reports = [add_reports(self._ended_reports)]
