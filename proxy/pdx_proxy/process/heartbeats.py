"""Heartbeats of workers, in memory that they share with the control process, and the kernel's data about a worker."""

import asyncio
import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final

from pdx_proxy.process.liveness import Sample

_COUNT: Final = Struct("q")
_SECONDS: Final = 0.5
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class HeartbeatTable:
    """The control side's end: owns the memory and reads it. Each worker writes only its own count."""

    def __init__(self, workers: int) -> None:
        self.fd: Final = os.memfd_create("pdx-heartbeats")
        """The file of the memory, for worker processes (see `Heart`)."""
        os.ftruncate(self.fd, workers * _COUNT.size)
        self._memory = mmap.mmap(self.fd, workers * _COUNT.size)

    def of(self, worker: int) -> int:
        """Return the heartbeats of a worker since its start."""
        return int(_COUNT.unpack_from(self._memory, worker * _COUNT.size)[0])

    def clear(self, worker: int) -> None:
        """The worker's process has ended."""
        _COUNT.pack_into(self._memory, worker * _COUNT.size, 0)

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()
        os.close(self.fd)


class Heart:
    """One worker's end: beats as long as the event loop runs."""

    def __init__(self, fd: int, worker: int) -> None:
        """Map the file and close it."""
        self._memory = mmap.mmap(fd, 0)
        os.close(fd)
        self._offset = worker * _COUNT.size
        self._beats = 0

    def beat(self) -> None:
        """Beat now and from now on, on the running loop."""
        self._beats += 1
        _COUNT.pack_into(self._memory, self._offset, self._beats)
        asyncio.get_running_loop().call_later(_SECONDS, self.beat)


def parse_stat(text: str, beats: int) -> Sample:
    """Return the sample of a process from its /proc/PID/stat. Its name, in parentheses, may contain any character."""
    fields = text[text.rindex(")") + 2 :].split()
    return Sample(beats=beats, state=fields[0], cpu=(int(fields[11]) + int(fields[12])) / _TICKS)


def read_sample(pid: int, beats: int) -> Sample | None:
    """Return the sample of a process; None if it has ended."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"), beats)
    except OSError:
        return None
