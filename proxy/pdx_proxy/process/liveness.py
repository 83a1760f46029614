"""Whether a worker process is alive, from its heartbeats and what the kernel reports about it. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LONGEST_STEP: Final = 2.0
"""What the time between two observations counts at most, in seconds.

If all processes were stopped together, or the machine was suspended, the control process was stopped too: its own gap
is long and says nothing about a worker.
"""
_STOPPED: Final = "Tt"
"""States of proc(5): stopped by a signal, or by a debugger."""
_SLEEPING: Final = "S"
"""The state of a process that waits for an event. A process that has too little CPU is not in it, but in R; one that
waits for a disk or for swapped memory is in D.
"""


class Fault(StrEnum):
    """Why a worker is replaced, as a phrase of the log."""

    STOPPED = "was stopped by a signal"
    HANGS = "waits for something and serves nothing"
    SPINS = "computes and serves nothing"


@dataclass(frozen=True, slots=True)
class Sample:
    """What is observed of a worker at one moment."""

    beats: int
    """Heartbeats since its start. The first one follows when the worker serves."""
    state: str
    """Its state as one letter of proc(5)."""
    cpu: float
    """Seconds of CPU that it has used."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a worker may do without a heartbeat, in seconds, before it is replaced."""

    stopped: float
    sleeping: float
    silent: float
    """Together with `cpu`: a worker that spins has used much CPU since its last heartbeat, one that starves has not."""
    cpu: float


SERVING: Final = Limits(stopped=5.0, sleeping=10.0, silent=10.0, cpu=2.0)
STARTING: Final = Limits(stopped=5.0, sleeping=60.0, silent=60.0, cpu=30.0)
"""Before the first heartbeat: on a busy machine a start takes long."""


@dataclass(frozen=True, slots=True)
class Silence:
    """What has been observed since a worker's last heartbeat, in seconds."""

    beats: int = 0
    cpu_before: float = 0.0
    """CPU that it had used at its last heartbeat."""
    cpu: float = 0.0
    """CPU that it has used since."""
    total: float = 0.0
    stopped: float = 0.0
    sleeping: float = 0.0

    def observe(self, sample: Sample, elapsed: float) -> "Silence":
        """Return the silence after one more sample, `elapsed` seconds of the observer's clock after the last one."""
        if sample.beats != self.beats:
            return Silence(sample.beats, sample.cpu)
        step = min(elapsed, LONGEST_STEP)
        return Silence(
            beats=self.beats,
            cpu_before=self.cpu_before,
            cpu=sample.cpu - self.cpu_before,
            total=self.total + step,
            # Only the time until now counts: a worker that runs again is not stopped.
            stopped=self.stopped + step if sample.state in _STOPPED else 0.0,
            sleeping=self.sleeping + step if sample.state in _SLEEPING else 0.0,
        )

    @property
    def fault(self) -> Fault | None:
        """Why the worker must be replaced; None: it may be alive.

        A worker that gets little CPU is kept: it is runnable, and has used nearly no CPU since its last heartbeat.
        """
        limits = SERVING if self.beats else STARTING
        if self.stopped >= limits.stopped:
            return Fault.STOPPED
        if self.sleeping >= limits.sleeping:
            return Fault.HANGS
        if self.total >= limits.silent and self.cpu >= limits.cpu:
            return Fault.SPINS
        return None
