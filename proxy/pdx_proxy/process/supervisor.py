"""The owner of one worker process: starts it, replaces it when it ends or fails, and receives its messages."""

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pdx_proxy.http.downstream.closing import refuse_handshakes
from pdx_proxy.process.channel import Channel, ListenerClosed, Report, ReportRequest, encode
from pdx_proxy.process.heartbeats import HeartbeatTable, read_sample
from pdx_proxy.process.liveness import Fault, Silence
from pdx_proxy.process.quarantine import WorkerEvent, WorkerEventSink
from pdx_proxy.process.refusal import refuse_all
from pdx_proxy.process.snapshot_frames import SnapshotFrames

_REPORT_SECONDS: Final = 2.0
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 10.0
_LONGEST_WAIT: Final = 1.0
"""The longest pause in which connections wait for the next process. For a longer one they are refused."""
_WATCH_SECONDS: Final = 1.0
_log: Final = logging.getLogger(__name__)


def restart_pause(before: float, ran: float) -> float:
    """Return how long to wait before the next start, after a pause of `before` and a process that ran `ran` seconds."""
    return _FIRST_PAUSE if ran > _LONGEST_PAUSE else min(before * 2, _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What the supervisors of all workers share."""

    load_fd: int
    """The memory of `LoadTable`."""
    prefill_fd: int
    """That of `SharedLogMemory`."""
    heartbeats: HeartbeatTable
    bind: Callable[[], socket.socket]
    """Returns one more listening socket of the serving port; raises OSError."""
    first_frames: Callable[[], Iterable[bytes]]
    """Returns the frames that each new process receives before its first snapshot."""
    snapshots: SnapshotFrames
    notify: WorkerEventSink
    """Receives the events of workers."""
    ended: Callable[[int, dict[str, Any] | None], None]
    """Receives the number and the last report of a process that has ended."""


class WorkerSupervisor:
    """Owner of a worker process and of its listening socket.

    Invariant: the socket listens only while a process serves it, or is about to.
    """

    def __init__(self, number: int, listener: socket.socket, context: WorkerContext) -> None:
        """Start the process on the running loop."""
        self._number = number
        self._listener: socket.socket | None = listener
        self._context = context
        self._channel: Channel | None = None
        self._snapshot = context.snapshots.none
        """The snapshot that the process has, or receives next."""
        self._pending: asyncio.Future[None] | None = None
        """The report that was requested last. Callers of `refresh` that come meanwhile wait for the same one."""
        self._stop = asyncio.Event()
        self._fault: Fault | None = None
        """Why the running process is being killed."""
        self.last: dict[str, Any] | None = None
        """The last report of the running process."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    @property
    def serves(self) -> bool:
        """Whether the process serves clients."""
        return self._channel is not None and self._fault is None and self._context.heartbeats.of(self._number) > 0

    def send(self, frame: bytes) -> None:
        """Send a frame to the process, if it runs."""
        if self._channel is not None:
            self._channel.send(frame)

    def send_latest(self, kind: str, frame: bytes) -> None:
        """Send a frame to the process, if it runs, unless a later one of this kind replaces it before it reads."""
        if self._channel is not None:
            self._channel.send_latest(kind, lambda: frame)

    def publish(self) -> None:
        """Send the latest snapshot to the process, if it runs."""
        if self._channel is not None:
            self._channel.send_latest("snapshot", self._next_snapshot)

    async def refresh(self) -> None:
        """Update `last`, unless the process does not answer in time."""
        if self._channel is None:
            return
        if self._pending is None or self._pending.done():
            self._pending = asyncio.get_running_loop().create_future()
            self._channel.send(encode(ReportRequest()))
        await asyncio.wait([self._pending], timeout=_REPORT_SECONDS)

    async def stop(self) -> None:
        """End the channel, on which the process finishes its requests and ends."""
        self._stop.set()
        if self._listener is not None:
            refuse_handshakes(self._listener)
        if self._channel is not None:
            self._channel.end()
        await self.task

    def _next_snapshot(self) -> bytes:
        frame = self._context.snapshots.since(self._snapshot)
        self._snapshot = self._context.snapshots.latest
        return frame

    async def _run(self) -> None:
        pause, loop = _FIRST_PAUSE, asyncio.get_running_loop()
        while not self._stop.is_set():
            began = loop.time()
            try:
                end = await self._run_process()
            except Exception as error:  # whatever it is, this worker must start again
                end = f"failed: {error!r}"
            self._context.ended(self._number, self.last)
            self.last = None
            if self._stop.is_set():
                break
            pause = restart_pause(pause, loop.time() - began)
            _log.warning("a worker %s; another starts in %g s.", end, pause)
            if pause > _LONGEST_WAIT:
                await self._stop_listening()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
        await self._stop_listening()

    async def _run_process(self) -> str:
        """Start a process, serve it until its end, and return how it ended; raises OSError and what pickle raises."""
        if self._listener is None:
            self._listener = self._context.bind()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                ours.setblocking(False)
                process = await self._spawn(self._listener, theirs)
            except BaseException:
                ours.close()
                raise
        watch = asyncio.get_running_loop().create_task(self._watch(process))
        try:
            await self._serve(await Channel.over(ours))
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            watch.cancel()
            end = f"ended with code {process.returncode}" if self._fault is None else str(self._fault)
            self._context.heartbeats.clear(self._number)
            self._fault = None
        return end

    async def _spawn(self, listener: socket.socket, theirs: socket.socket) -> asyncio.subprocess.Process:
        context = self._context
        fds = (listener.fileno(), theirs.fileno(), context.load_fd, context.prefill_fd, context.heartbeats.fd)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "pdx_proxy.process.worker_process"),
            *map(str, (*fds, self._number)),
            pass_fds=fds,
        )

    async def _serve(self, channel: Channel) -> None:
        """Send what a new process needs, and receive its messages until it ends the channel."""
        self._channel, self._snapshot = channel, self._context.snapshots.none
        try:
            for frame in self._context.first_frames():
                channel.send(frame)
            self.publish()
            if self._stop.is_set():
                channel.end()
            while (message := await channel.receive()) is not None:
                self._receive(message)
        finally:
            self._channel = None
            channel.close()
            if self._pending is not None and not self._pending.done():
                self._pending.set_result(None)

    def _receive(self, message: object) -> None:
        if isinstance(message, WorkerEvent):
            try:
                self._context.notify(message)
            except Exception:  # an error on this side must not end the worker
                _log.exception("An event of a worker failed inside the gateway.")
        elif isinstance(message, Report):
            self.last = message.content
            if self._pending is not None and not self._pending.done():
                self._pending.set_result(None)
        elif isinstance(message, ListenerClosed) and self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill the process when its silence shows that it serves nothing."""
        loop, silence = asyncio.get_running_loop(), Silence()
        last = loop.time()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now = loop.time()
            sample = read_sample(process.pid, self._context.heartbeats.of(self._number))
            if sample is not None and process.returncode is None:
                silence = silence.observe(sample, now - last)
                if silence.fault is not None:
                    self._fault = silence.fault
                    process.kill()
            last = now

    async def _stop_listening(self) -> None:
        """Refuse the connections that wait for a process, and new ones: other workers, if there are any, get them."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await refuse_all(listener)
