"""The workers as the control side uses them: one in this process, or several processes."""

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, Final, Protocol

from pdx_proxy.admission.quarantine import Verdicts
from pdx_proxy.admission.usage import WAITING_ROW
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.prefill.shared_log import SharedLogMemory
from pdx_proxy.balancing.shared_load import LoadTable
from pdx_proxy.config.settings import Address, Settings
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.http.downstream.listener import BACKLOG
from pdx_proxy.process.channel import Drain, encode
from pdx_proxy.process.heartbeats import HeartbeatTable
from pdx_proxy.process.quarantine import WorkerEventSink
from pdx_proxy.process.snapshot_frames import SnapshotFrames
from pdx_proxy.process.supervisor import WorkerContext, WorkerSupervisor
from pdx_proxy.process.worker import Worker
from pdx_proxy.telemetry.counters import add_reports


class Workers(Protocol):
    """One worker or several."""

    @property
    def address(self) -> Address:
        """Where clients are served, with the port in force."""

    @property
    def serving(self) -> int:
        """The number of workers that serve clients."""

    def apply(self, snapshot: Snapshot) -> None:
        """Put a snapshot in force in every worker."""

    def apply_load(self, reports: LoadReports) -> None:
        """Give every worker the engines' latest load reports."""

    def apply_verdicts(self, verdicts: Verdicts) -> None:
        """Isolate requests and clients in every worker."""

    @property
    def waiting(self) -> int:
        """Requests in the queues of all workers."""

    async def report(self) -> dict[str, Any]:
        """Return the sum of the workers' reports."""

    def drain(self) -> None:
        """Serve on, and let clients connect to other gateways."""

    async def stop(self) -> None:
        """Let every worker finish its open requests, then end it."""


class ListenError(Exception):
    """An address cannot be served. The text is one sentence for the user, without its period."""


def bind(address: Address, *, shared: bool, flag: str = "--listen") -> socket.socket:
    """Return a bound socket; raises ListenError, which names the address's flag.

    `shared` lets other sockets of this user bind the same port.
    """
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(where)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror}; choose another with {flag}") from error
    sock.setblocking(False)
    return sock


def address_of(sock: socket.socket) -> Address:
    """Return the address of a bound socket."""
    host, port = sock.getsockname()[:2]
    return Address(host, port)


class LocalWorkers:
    """One worker in this process."""

    serving: Final = 1

    def __init__(self, worker: Worker, address: Address) -> None:
        self._worker = worker
        self.address = address

    @classmethod
    async def start(cls, settings: Settings, notify: WorkerEventSink) -> "LocalWorkers":
        """Serve the port from this process; raises ListenError."""
        sock = bind(settings.listen, shared=False)
        address = address_of(sock)
        worker = Worker(settings, notify)
        await worker.start(sock)
        return cls(worker, address)

    def apply(self, snapshot: Snapshot) -> None:
        self._worker.apply(snapshot)

    def apply_load(self, reports: LoadReports) -> None:
        self._worker.apply_load(reports)

    def apply_verdicts(self, verdicts: Verdicts) -> None:
        self._worker.apply_verdicts(verdicts)

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

    def __init__(self, settings: Settings, notify: WorkerEventSink, table: LoadTable) -> None:
        with bind(settings.listen, shared=False) as sock:
            self.address = address_of(sock)
        self._settings_frame = encode(settings)
        self._table = table
        self._ended_reports: list[dict[str, Any]] = []
        self._snapshots = SnapshotFrames()
        self._load_frame: bytes | None = None
        """The newest reports; None before the first, so that a worker counts its choices under its own policy."""
        self._verdicts_frame: bytes | None = None
        self._draining = False
        self._stopping = False
        self._heartbeats = HeartbeatTable(settings.workers)
        self._prefill = SharedLogMemory(settings.workers)
        context = WorkerContext(
            load_fd=table.fd,
            prefill_fd=self._prefill.fd,
            heartbeats=self._heartbeats,
            bind=self._listen,
            first_frames=self._first_frames,
            snapshots=self._snapshots,
            notify=notify,
            ended=self._add_ended,
        )
        # Listen at once: clients that come before a worker has started wait for it.
        sockets = [self._listen() for _ in range(settings.workers)]
        self._supervisors = [WorkerSupervisor(number, sock, context) for number, sock in enumerate(sockets)]

    @property
    def serving(self) -> int:
        return sum(supervisor.serves for supervisor in self._supervisors)

    def apply(self, snapshot: Snapshot) -> None:
        self._snapshots.put(snapshot)
        for supervisor in self._running:
            supervisor.publish()

    def apply_load(self, reports: LoadReports) -> None:
        self._load_frame = frame = encode(reports)
        for supervisor in self._running:
            supervisor.send_latest("load", frame)

    def apply_verdicts(self, verdicts: Verdicts) -> None:
        self._verdicts_frame = frame = encode(verdicts)
        for supervisor in self._running:
            supervisor.send_latest("verdicts", frame)

    @property
    def waiting(self) -> int:
        return self._table.total(WAITING_ROW)

    async def report(self) -> dict[str, Any]:
        await asyncio.gather(*(supervisor.refresh() for supervisor in self._supervisors))
        # Read together, without waiting in between: a process that ends meanwhile is counted exactly once.
        running = [supervisor.last for supervisor in self._supervisors if supervisor.last is not None]
        return add_reports([*self._ended_reports, *running])

    def drain(self) -> None:
        self._draining = True
        for supervisor in self._running:
            supervisor.send(encode(Drain()))

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
        self._heartbeats.close()
        self._prefill.close()

    @property
    def _running(self) -> list[WorkerSupervisor]:
        return [] if self._stopping else self._supervisors

    def _listen(self) -> socket.socket:
        sock = bind(self.address, shared=True)
        sock.listen(BACKLOG)
        return sock

    def _first_frames(self) -> Iterable[bytes]:
        load = (self._load_frame,) if self._load_frame is not None else ()
        verdicts = (self._verdicts_frame,) if self._verdicts_frame is not None else ()
        drain = (encode(Drain()),) if self._draining else ()
        return (self._settings_frame, *load, *verdicts, *drain)

    def _add_ended(self, number: int, report: dict[str, Any] | None) -> None:
        """Keep the counts of a process that has ended; it has nothing in flight."""
        self._table.forget(number)
        self._prefill.forget(number)
        if report is not None:
            prefill = {"tokens": report["prefill"]["tokens"]}
            keys = ("inFlight", "legs", "prefilling", "blocked", "held", "senders")
            open_now = {key: dict[str, int]() for key in keys}
            self._ended_reports.append({**report, **open_now, "prefill": prefill})
            self._ended_reports = [add_reports(self._ended_reports)]
