"""A worker as a process: `python -m pdx_proxy.process.worker_process LISTENER_FD CHANNEL_FD LOAD_FD NUMBER`."""

import signal
import socket
import sys

import uvloop

from pdx_proxy.admission.usage import ROWS, SharedUsage
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.shared_load import SharedLoad
from pdx_proxy.config.settings import Settings
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.process.channel import Channel, Drain, Report, ReportRequest
from pdx_proxy.process.worker import Worker, keep_memory, spare_collector
from pdx_proxy.telemetry.access_log import configure_logs


async def _work(listener_fd: int, channel_fd: int, load_fd: int, number: int) -> None:
    channel = await Channel.over(socket.socket(fileno=channel_fd))
    settings = await channel.receive()
    assert isinstance(settings, Settings), "the first message holds the settings"
    configure_logs(settings)
    load = SharedLoad.over(load_fd, number, settings.workers, ROWS)
    worker = Worker(settings, channel.send, load, SharedUsage(load.rows, number, settings.workers))
    await worker.start(socket.socket(fileno=listener_fd))
    keep_memory()
    spare_collector()
    while (message := await channel.receive()) is not None:
        if isinstance(message, Snapshot):
            worker.apply(message)
        elif isinstance(message, LoadReports):
            worker.apply_load(message)
        elif isinstance(message, Drain):
            worker.drain()
        elif isinstance(message, ReportRequest):
            channel.send(Report(worker.report()))
    await worker.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    uvloop.run(_work(*map(int, sys.argv[1:5])))
