"""The record of a `pdx up`, from which `pdx status` finds it: one directory for each run.

A `pdx up` holds the directory's lock until it ends, however it ends; a record without a held lock is of an ended run.
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
ENDING: Final = "ending.json"


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
    serving: bool = False
    """Whether the endpoint has been proved and printed; False while it starts."""
    engines: int = 0
    """How many engines it starts."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the last run of a directory ended."""

    name: str
    at: float
    """Unix time, seconds."""
    why: str = ""
    """As a clause; empty if it was stopped."""

    @property
    def is_failure(self) -> bool:
        """Whether it ended by itself."""
        return bool(self.why)


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory with the record and the logs of one run."""

    path: Path

    @property
    def logs(self) -> Path:
        """The directory of the logs."""
        return self.path / LOGS

    def log(self, name: str) -> Path:
        """Return the path of one process's log."""
        return self.logs / f"{name}.log"

    def write(self, run: Run) -> None:
        """Replace the record atomically, so that no reader gets half of it."""
        new = self.path / f".{STATE}.new"
        new.write_text(json.dumps(dataclasses.asdict(run), indent=2) + "\n")
        new.replace(self.path / STATE)

    def read(self) -> Run | None:
        """Return the record; None if there is none, or none that this version can read."""
        try:
            fields = json.loads((self.path / STATE).read_text())
            return Run(**{**fields, "processes": tuple(Process(**process) for process in fields["processes"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def clear(self, ending: Ending | None = None) -> None:
        """Remove the record; the logs stay, and how the run has ended."""
        if ending is not None:
            with contextlib.suppress(OSError):  # it only explains
                (self.path / ENDING).write_text(json.dumps(dataclasses.asdict(ending)) + "\n")
        (self.path / STATE).unlink(missing_ok=True)

    def ending(self) -> Ending:
        """Return how the last run has ended; without a report, only its name and the time of its last log line."""
        try:
            return Ending(**json.loads((self.path / ENDING).read_text()))
        except (OSError, ValueError, TypeError):
            return Ending(self.path.name, self._last_line())

    def _last_line(self) -> float:
        times = [log.stat().st_mtime for log in self.logs.glob("*.log")] if self.logs.is_dir() else []
        return max(times, default=self.path.stat().st_mtime)

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Lock the directory; raises CommandError if another `pdx up` holds the lock."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CommandError(
                f"{self.path} cannot store the run's files: {error.strerror}; choose another directory with --run-dir."
            ) from error
        try:
            if not _lock(lock, wait_seconds=0.5):
                raise CommandError(f"{name} already runs in {self.path}; stop that `pdx up`, or use another --run-dir.")
            why = ""
            try:
                yield
            except CommandError as error:
                why = str(error).partition("; ")[0].removesuffix(".")
                raise
            finally:
                self.clear(Ending(name, time.time(), why))
        finally:
            os.close(lock)

    def live(self) -> Run | None:
        """Return the record if its `pdx up` still runs; remove it otherwise."""
        if (run := self.read()) is None:
            return None
        with contextlib.suppress(OSError):
            lock = os.open(self.path / LOCK, os.O_RDWR)
            try:
                if _lock(lock, wait_seconds=0):
                    self.clear(Ending(run.name, self._last_line(), "`pdx up` was killed"))
                    return None
            finally:
                os.close(lock)
        return run


def default_root() -> Path:
    """Return the parent of the run directories."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "pdx"


def directories(root: Path, *, ended: bool = False) -> list[RunDirectory]:
    """Return every run directory in a root, or the root itself if it is one; if `ended`, those of ended runs."""
    candidates = [root, *sorted(root.iterdir())] if root.is_dir() else []
    if ended:
        return [RunDirectory(p) for p in candidates if (p / LOGS).is_dir() and not (p / STATE).is_file()]
    return [RunDirectory(path) for path in candidates if (path / STATE).is_file()]


def live_runs(root: Path) -> list[Run]:
    """Return the running `pdx up`s under a root."""
    return [run for directory in directories(root) if (run := directory.live()) is not None]


def _lock(descriptor: int, wait_seconds: float) -> bool:
    """Take the lock. Wait a little for it: `pdx status` holds it for a moment too."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True
