"""The record of a `pdx up`, from which `pdx status` finds it: one directory for each run.

A `pdx up` holds the directory's lock until it ends, however it ends; a record without a held lock is of an ended run.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdx_api.names import Role
from pdx_cli.errors import CommandError, InputError
from pdx_cli.usage import duration

STATE: Final = "state.json"
LOCK: Final = "lock"
LOGS: Final = "logs"
ENDING: Final = "ending.json"
SCRATCH: Final = "scratch.json"
SOCKETS: Final = "pdx-"
"""First letters of a directory's name in the system's temporary directory."""
STORAGE: Final = "kv-"
"""The same in the run directory."""
_OF_ENGINE: Final = re.compile(rf"(.+-)?({'|'.join(Role)})-\d+")
"""Name of a process that is an engine, or the sidecar of one (`pdx_cli.local.layout`)."""
RECENT_SECONDS: Final = 3600.0
"""For so long after its end, commands mention a run that nobody named."""


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
class Scratch:
    """The temporary directories of a run."""

    sockets: Path
    """For vLLM's sockets, which stay. The path is short, because a socket's path has at most 107 characters."""
    storage: Path
    """For KV that engines share as files, and for the files of each engine."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the last run of a directory ended."""

    name: str
    at: float
    """Unix time, seconds."""
    why: str = ""
    """As a clause; empty if it was stopped."""
    is_exact: bool = True
    """False: `at` is the time of its last log line, and nothing reports when it ended."""

    def sentence(self, now: float) -> str:
        """Return which run has ended, when, and why."""
        ago = f"{'' if self.is_exact else 'at most '}{duration(max(0, int(now - self.at)))} ago"
        return f"{self.name} ended {ago}: {self.why}." if self.why else f"{self.name} ended {ago}."


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory with the record and the logs of one run."""

    path: Path

    @property
    def logs(self) -> Path:
        """The directory of the logs."""
        return self.path / LOGS

    @property
    def reaper_log(self) -> Path:
        """The log of the process that ends the others if `pdx up` is killed; empty until then."""
        return self.log("reaper")

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

    def remove_engine_logs(self) -> None:
        """Remove the logs of the engines of earlier runs, which may have had more of them."""
        for log in self.logs.glob("*.log"):
            if _OF_ENGINE.fullmatch(log.stem):
                log.unlink(missing_ok=True)

    def clear(self, ending: Ending | None = None) -> None:
        """Remove the record; the logs stay, and how the run has ended."""
        if ending is not None:
            with contextlib.suppress(OSError):  # it only explains
                (self.path / ENDING).write_text(json.dumps(dataclasses.asdict(ending)) + "\n")
        (self.path / STATE).unlink(missing_ok=True)

    def ending(self) -> Ending:
        """Return how the last run has ended; without a report, only its name and what its logs show."""
        try:
            return Ending(**json.loads((self.path / ENDING).read_text()))
        except (OSError, ValueError, TypeError):
            return self._killed(self.path.name, "")

    def _killed(self, name: str, why: str) -> Ending:
        """Return the end of a run that reported none: the reaper writes its log at that moment."""
        with contextlib.suppress(OSError):
            found = self.reaper_log.stat()
            if found.st_size:
                return Ending(name, found.st_mtime, why)
        times = [log.stat().st_mtime for log in self.logs.glob("*.log")] if self.logs.is_dir() else []
        return Ending(name, max(times, default=self.path.stat().st_mtime), why, is_exact=False)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Scratch]:
        """Create the temporary directories of a run, and remove them. A file lists them, in case the run is killed."""
        try:
            with (
                tempfile.TemporaryDirectory(prefix=SOCKETS) as sockets,
                tempfile.TemporaryDirectory(prefix=STORAGE, dir=self.path.absolute()) as storage,
            ):
                listed = {"run": str(self.path.resolve()), "directories": [sockets, storage]}
                (self.path / SCRATCH).write_text(json.dumps(listed) + "\n")
                yield Scratch(Path(sockets), Path(storage))
        finally:
            (self.path / SCRATCH).unlink(missing_ok=True)

    def remove_scratch(self) -> None:
        """Remove the temporary directories that a killed run left. No run may hold the lock.

        While engines that have not ended yet still write into one, the list stays for the next command.
        """
        try:
            listed = [path for path in self._listed() if self._is_scratch(path)]
        except (OSError, ValueError, TypeError, KeyError):
            return
        for path in listed:
            shutil.rmtree(path, ignore_errors=True)
        if not any(path.exists() for path in listed):
            (self.path / SCRATCH).unlink(missing_ok=True)

    def _listed(self) -> list[Path]:
        """Return the directories that a run in this directory listed.

        In a copied run directory, or if another user has written the list, they are not the run's: return none.
        """
        with open(os.open(self.path / SCRATCH, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
            is_own = os.fstat(file.fileno()).st_uid == os.getuid()
            listed = json.load(file)
        if not is_own or listed["run"] != str(self.path.resolve()):
            return []
        return [Path(path) for path in listed["directories"]]

    def _is_scratch(self, path: Path) -> bool:
        """Whether a run of this user made the directory."""
        try:
            found, place = path.lstat(), path.parent.resolve()
        except OSError:
            return False
        places = ((Path(tempfile.gettempdir()), SOCKETS), (self.path, STORAGE))
        is_named = any(place == parent.resolve() and path.name.startswith(prefix) for parent, prefix in places)
        return is_named and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Lock the directory, and remove what a killed run left in it. A block that raises InputError was no run.

        Raises InputError for a directory that cannot store files, or whose lock another `pdx up` holds.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(
                f"{self.path} cannot store the run's files: {error.strerror}; choose another directory with --run-dir."
            ) from error
        try:
            if not _lock(lock, wait_seconds=0.5):
                raise InputError(f"{name} already runs in {self.path}; stop that `pdx up`, or use another --run-dir.")
            if (former := self.read()) is not None:
                self._clear_killed(former)
            self.clear()
            self.remove_scratch()
            with self._recorded(name):
                yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _recorded(self, name: str) -> Iterator[None]:
        """Record how the run ends. A start that is refused leaves the record of the run before, or none."""
        why, is_refused = "", False
        try:
            yield
        except InputError:
            is_refused = True
            with contextlib.suppress(OSError):  # it has the logs of the run before
                self.logs.rmdir()
            raise
        except CommandError as error:
            why = str(error).partition("; ")[0].removesuffix(".")
            raise
        finally:
            self.clear(None if is_refused else Ending(name, time.time(), why))

    def _clear_killed(self, run: Run) -> None:
        self.clear(self._killed(run.name, "`pdx up` was killed"))

    @property
    def is_held(self) -> bool:
        """Whether a run holds the lock."""
        try:
            lock = os.open(self.path / LOCK, os.O_RDWR)
        except OSError:
            return False
        try:
            return not _lock(lock, wait_seconds=0)
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
                    self._clear_killed(run)
                    self.remove_scratch()
                    return None
            finally:
                os.close(lock)
        return run


def default_root() -> Path:
    """Return the parent of the run directories."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "pdx"


def directories(root: Path, *, ended: bool = False) -> list[RunDirectory]:
    """Return every run directory in a root, or the root itself if it is one; if `ended`, those of ended runs.

    Raises InputError for a root that is a file or that cannot be read.
    """
    try:
        candidates = [root, *sorted(root.iterdir())] if root.exists() else []
        if ended:
            found = [RunDirectory(p) for p in candidates if (p / LOGS).is_dir() and not (p / STATE).is_file()]
            return [each for each in found if not each.is_held]
        return [RunDirectory(path) for path in candidates if (path / STATE).is_file()]
    except OSError as error:
        named = f"{error.filename or root} cannot be read: {error.strerror}"
        raise InputError(f"{named}; choose another directory with --run-dir.") from error


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
