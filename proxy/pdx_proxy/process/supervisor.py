"""The owner of one worker process: starts it, starts another when it ends, and receives its messages."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from pdx_proxy.endpoints.events import EventSink, LostHandoff, Suspect
from pdx_proxy.process.channel import Channel, Report, ReportRequest

_REPORT_SECONDS: Final = 2.0
_RESTART_SECONDS: Final = 0.2
_LONGEST_RESTART_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)


class WorkerSupervisor:
    """Owner of a worker process and of its listening socket."""

    def __init__(
        self,
        number: int,
        listener: socket.socket,
        load_fd: int,
        *,
        first_messages: Callable[[], Iterable[object]],
        notify: EventSink,
        ended: Callable[[int, dict[str, Any] | None], None],
    ) -> None:
        """Start the process on the running loop.

        Each new process receives `first_messages`. `notify` receives its events. After its end `ended` receives the
        number and the last report.
        """
        self._number = number
        self._listener = listener
        self._load_fd = load_fd
        self._first_messages = first_messages
        self._notify = notify
        self._ended = ended
        self._channel: Channel | None = None
        self._pending: asyncio.Future[dict[str, Any]] | None = None
        """The report that was requested last. Callers of `report` that come meanwhile wait for the same one."""
        self._stopping = False
        self.last: dict[str, Any] | None = None
        """The last report of the running process."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    def send(self, message: object) -> None:
        """Send a message to the process, if it runs."""
        if self._channel is not None:
            self._channel.send(message)

    async def report(self) -> dict[str, Any] | None:
        """Return a fresh report, or the last one if the process does not answer."""
        if self._channel is None:
            return self.last
        if self._pending is None or self._pending.done():
            self._pending = asyncio.get_running_loop().create_future()
            self._channel.send(ReportRequest())
        pending = self._pending
        await asyncio.wait([pending], timeout=_REPORT_SECONDS)
        return pending.result() if pending.done() else self.last

    async def stop(self) -> None:
        """Close the channel, on which the process finishes its requests and ends."""
        self._stopping = True
        if self._channel is not None:
            self._channel.close()
        await self.task

    async def _run(self) -> None:
        pause = _RESTART_SECONDS
        loop = asyncio.get_running_loop()
        while not self._stopping:
            began = loop.time()
            code = await self._run_process()
            self._ended(self._number, self.last)
            self.last = self._pending = None
            if self._stopping:
                break
            pause = _RESTART_SECONDS if loop.time() - began > _LONGEST_RESTART_SECONDS else pause * 2
            pause = min(pause, _LONGEST_RESTART_SECONDS)
            _log.warning("a worker ended with code %s; another starts in %g s.", code, pause)
            await asyncio.sleep(pause)
        self._listener.close()

    async def _run_process(self) -> int:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fds = (self._listener.fileno(), theirs.fileno(), self._load_fd)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "pdx_proxy.process.worker_process"),
            *map(str, (*fds, self._number)),
            pass_fds=fds,
        )
        theirs.close()
        self._channel = await Channel.over(ours)
        for message in self._first_messages():
            self._channel.send(message)
        if self._stopping:
            self._channel.close()
        await self._receive(self._channel)
        self._channel.close()
        self._channel = None
        return await process.wait()

    async def _receive(self, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            if isinstance(message, Suspect | LostHandoff):
                self._notify(message)
            elif isinstance(message, Report):
                self.last = message.content
                if self._pending is not None and not self._pending.done():
                    self._pending.set_result(message.content)
