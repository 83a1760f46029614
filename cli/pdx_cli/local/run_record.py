"""What a `pdx up` writes down about itself, so that `pdx status` finds it: one directory for each run.

The kernel holds the directory's lock as long as that `pdx up` lives; a record without a held lock is of a dead run.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdx_cli.errors import CommandError

STATE: Final = "state.json"
LOCK: Final = "lock"
LOGS: Final = "logs"


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a run."""

    name: str
    pid: int
    """Also the id of its process group."""
    url: str
    log: str


@dataclass(frozen=True, slots=True)
class Run:
    """One `pdx up`."""

    name: str
    pid: int
    started: float
    """Unix time, seconds."""
    mode: str
    connector: str | None
    """None in mode Aggregated, as is the order."""
    order: str | None
    engine: str
    model: str
    endpoint: str
    """Base URL for clients."""
    admin: str
    """Base URL of the gateway's /metrics and /pdx/state."""
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where one run keeps its record and its logs."""

    path: Path

    @property
    def logs(self) -> Path:
        """The directory of the logs."""
        return self.path / LOGS

    def log(self, name: str) -> Path:
        """The log of one process."""
        return self.logs / f"{name}.log"

    def write(self, run: Run) -> None:
        """Replace the record at once, so that no reader sees half of it."""
        new = self.path / f".{STATE}.new"
        new.write_text(json.dumps(dataclasses.asdict(run), indent=2) + "\n")
        new.replace(self.path / STATE)

    def read(self) -> Run | None:
        """The record, if there is one that this version understands."""
        try:
            fields = json.loads((self.path / STATE).read_text())
            return Run(**{**fields, "processes": tuple(Process(**process) for process in fields["processes"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def forget(self) -> None:
        """Remove the record; the logs stay."""
        (self.path / STATE).unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Own the directory; CommandError when another `pdx up` does."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CommandError(f"{self.path} cannot hold the run's files: {error.strerror}.") from error
        try:
            if not _lock(lock, patience_seconds=0.5):
                raise CommandError(
                    f"{name} already runs from {self.path}; stop that `pdx up`, or name another --run-dir."
                )
            try:
                yield
            finally:
                self.forget()
        finally:
            os.close(lock)

    def living(self) -> Run | None:
        """The record of a run that lives; that of a dead one is removed."""
        if (run := self.read()) is None:
            return None
        with contextlib.suppress(OSError):
            lock = os.open(self.path / LOCK, os.O_RDWR)
            try:
                if _lock(lock, patience_seconds=0):
                    self.forget()
                    return None
            finally:
                os.close(lock)
        return run


def default_root() -> Path:
    """Parent of the run directories."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "pdx"


def directories(root: Path) -> list[RunDirectory]:
    """Every run directory under a root, or the root itself if it is one."""
    candidates = [root, *sorted(root.iterdir())] if root.is_dir() else []
    return [RunDirectory(path) for path in candidates if (path / STATE).is_file()]


def _lock(descriptor: int, patience_seconds: float) -> bool:
    """Take the lock; `pdx status` holds it for a moment too, which the patience outlasts."""
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True
