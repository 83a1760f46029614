"""A worker as a process: `python -m pdx_proxy.process.worker_process LISTENER CHANNEL LOAD PREFILL HEARTBEATS NUMBER`.

All but the last are file descriptors.
"""

import signal
import socket
import sys

import uvloop

from pdx_proxy.admission.quarantine import Verdicts
from pdx_proxy.admission.usage import ROWS, SharedUsage
from pdx_proxy.balancing.load_reports import LoadReports
from pdx_proxy.balancing.prefill.shared_log import SharedLog
from pdx_proxy.balancing.shared_load import SharedLoad
from pdx_proxy.config.settings import Settings
from pdx_proxy.endpoints.snapshot import Snapshot, SnapshotChange
from pdx_proxy.process.channel import Channel, Drain, ListenerClosed, Report, ReportRequest, encode
from pdx_proxy.process.guard import Guard
from pdx_proxy.process.heartbeats import Heart
from pdx_proxy.process.worker import Worker, keep_memory, spare_collector
from pdx_proxy.telemetry.access_log import configure_logs


async def _work(
    listener_fd: int, channel_fd: int, load_fd: int, prefill_fd: int, heartbeat_fd: int, number: int
) -> None:
    listener = socket.socket(fileno=listener_fd)
    channel = await Channel.over(socket.socket(fileno=channel_fd))
    settings = await channel.receive()
    assert isinstance(settings, Settings), "the first message holds the settings"
    configure_logs(settings)
    load = SharedLoad.over(load_fd, number, settings.workers, ROWS)
    usage = SharedUsage(load.rows, number, settings.workers)
    log = SharedLog.over(prefill_fd, number, settings.workers)
    worker = Worker(settings, lambda event: channel.send(encode(event)), load, usage, log)
    heart, guard = Heart(heartbeat_fd, number), Guard()
    snapshot: Snapshot | None = None
    while (message := await channel.receive()) is not None:
        if isinstance(message, SnapshotChange):
            starts, snapshot = snapshot is None, message.apply_to(snapshot or Snapshot())
            worker.apply(snapshot)
            if starts:  # not before: it would answer that no engine is ready
                await worker.start(listener)
                keep_memory()
                spare_collector()
                heart.beat()
        elif isinstance(message, LoadReports):
            worker.apply_load(message)
        elif isinstance(message, Verdicts):
            worker.apply_verdicts(message)
        elif isinstance(message, Drain):
            worker.drain()
        elif isinstance(message, ReportRequest):
            with guard.step("The report of a worker"):
                channel.send(encode(Report(worker.report())))
    await worker.stop(lambda: channel.send(encode(ListenerClosed())) if snapshot is not None else None)
    channel.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    uvloop.run(_work(*map(int, sys.argv[1:7])))
