"""Processes of a run: started on their cores, measured through /proc, ended by their IDs."""

import http.client
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_SECONDS: Final = 30.0
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def start(
    command: Sequence[str], cores: str, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that runs on these cores only; its output goes to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            ["taskset", "-c", cores, *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )


def end(process: subprocess.Popen[bytes], seconds: float = 5.0) -> None:
    """Ask a process to end, and kill it when it does not within `seconds`."""
    children = tree(process.pid)[1:]
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.kill()
        process.wait()


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time that a process and its descendants have used, user and system."""
    ticks = 0
    for one in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS


def busy_seconds(cores: str) -> float:
    """Time that these cores (numbers with commas) have spent on any process, or were stolen from this machine."""
    names = {f"cpu{core}" for core in cores.split(",")}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        fields = line.split()
        if fields and fields[0] in names:
            user, nice, system, _, _, _, _, steal = map(int, fields[1:9])
            ticks += user + nice + system + steal
    return ticks / _TICKS


def resident_bytes(pid: int) -> list[int]:
    """Resident memory of a process and of each of its descendants."""
    sizes = []
    for one in tree(pid):
        with suppress(OSError):
            sizes.append(int(Path(f"/proc/{one}/statm").read_text().split()[1]) * _PAGE)
    return sizes


def get_json(port: int, path: str) -> dict[str, Any]:
    """A JSON object from a port of loopback."""
    found: dict[str, Any] = json.loads(get_text(port, path))
    return found


def get_text(port: int, path: str) -> str:
    """A page from a port of loopback."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PAGE_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def serves(port: int) -> bool:
    """Whether a completion is answered with 200 within two seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    body = json.dumps({"model": "bench", "prompt": "a short prompt", "max_tokens": 2, "stream": False})
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def await_serving(process: subprocess.Popen[bytes], port: int, seconds: float = 30.0) -> str | None:
    """Wait until a gateway serves; otherwise return the reason why it does not."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if process.poll() is not None:
            return f"ended with status {process.returncode}"
        if serves(port):
            return None
        time.sleep(0.2)
    return f"served nothing within {seconds:g} s"
