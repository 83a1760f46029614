"""Child processes with a record on disk, so that another process can end them, also after a crash."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pdx_cluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Process:
    """One recorded process."""

    name: str
    pid: int
    started: int
    """Start time in clock ticks since boot. It shows whether the pid now belongs to another process."""


@dataclass(frozen=True, slots=True)
class Supervisor:
    """Starts processes and keeps their records and logs in `folder`."""

    folder: Path
    bound: bool = False
    """Whether the processes end with the thread that started them, even by SIGKILL (for tests)."""

    def start(self, name: str, command: Sequence[str | Path]) -> Process:
        """Start a process in its own session and record it."""
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        # setpriv executes the program in the same process, so the pid is the program's.
        prefix = ["setpriv", "--pdeathsig", "KILL"] if self.bound else []
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = Process(name, child.pid, _start_time(child.pid) or 0)
        # `is_alive` waits for the child by its pid; with a return code, Popen does not warn about a running child.
        child.returncode = 0
        record = {"name": name, "pid": process.pid, "started": process.started}
        (self._records / f"{name}.json").write_text(json.dumps(record))
        return process

    def recorded(self) -> list[Process]:
        """Return all recorded processes, running or not, in the order of their start."""
        records = [_read(path) for path in self._records.glob("*.json")]
        return sorted((record for record in records if record), key=lambda process: process.started)

    def find(self, name: str) -> Process | None:
        """Return the recorded process of that name; None if it does not run."""
        process = _read(self._records / f"{name}.json")
        return process if process and is_alive(process) else None

    def stop(self, process: Process, grace_seconds: float = 5.0) -> None:
        """Send SIGTERM, after the grace period (or at once) SIGKILL; return when process and record are gone."""
        steps = [(signal.SIGTERM, grace_seconds)] if grace_seconds else []
        for number, patience in (*steps, (signal.SIGKILL, 5.0)):
            if not is_alive(process):
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
            wait_until(lambda: not is_alive(process), patience, interval_seconds=0.01)
        (self._records / f"{process.name}.json").unlink(missing_ok=True)

    def kill_all(self) -> None:
        """Kill all recorded processes, the last one first."""
        for process in reversed(self.recorded()):
            self.stop(process, grace_seconds=0)

    def log(self, name: str) -> Path:
        """Return the path of one process's log."""
        return self._logs / f"{name}.log"

    def require(self, name: str, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until a process is ready; raises ClusterError with its last lines if it ends or the time runs out."""
        process = self.find(name)
        if wait_until(lambda: ready() or process is None or not is_alive(process), timeout_seconds) and ready():
            return
        late = process is not None and is_alive(process)
        state = f"is not ready after {timeout_seconds:.0f} s" if late else "has ended"
        lines = self.log(name).read_text(errors="replace").splitlines()[-8:] if self.log(name).exists() else []
        raise ClusterError("\n".join([f"{name} {state}; its log ends:", *lines]))

    @property
    def _records(self) -> Path:
        return self.folder / "processes"

    @property
    def _logs(self) -> Path:
        return self.folder / "logs"


def is_alive(process: Process) -> bool:
    """Whether this process runs, and not another one with its pid."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)  # reaps the process if it is an ended child
    return process.started == _start_time(process.pid)


def wait_until(condition: Callable[[], bool], timeout_seconds: float, interval_seconds: float = 0.05) -> bool:
    """Wait until the condition holds, and return whether it did in time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_seconds)
    return True


def _start_time(pid: int) -> int | None:
    try:
        # The command's name, in brackets, may contain anything; the fields after it start with the state.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _read(path: Path) -> Process | None:
    try:
        return Process(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
