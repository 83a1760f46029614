"""Finds Prometheus and promtool on PATH, or unpacks Debian's package into a cache."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.programs.kubernetes import Report, cache_root

PROGRAMS: Final = ("prometheus", "promtool")


def prometheus_programs(report: Report = lambda line: None) -> dict[str, Path]:
    """Return the paths of both programs; raises MissingError without them, ClusterError for a broken package."""
    found = {name: shutil.which(name) for name in PROGRAMS}
    if all(found.values()):
        return {name: Path(path) for name, path in found.items() if path}
    folder = cache_root(os.environ).parent / "prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((folder / name).is_file() for name in PROGRAMS):
            _unpack(folder, report)
    return {name: folder / name for name in PROGRAMS}


def _unpack(folder: Path, report: Report) -> None:
    """Unpack the package. Installing it needs root and starts a service."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingError("Install prometheus and promtool (Debian package prometheus), then try again.")
    report(f"Unpacking Debian's prometheus into {folder}")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as new:
        _download(Path(new))
        package = next(Path(new).glob("prometheus_*.deb"))
        done = _run(["dpkg-deb", "-x", str(package), "content"], Path(new))
        if done.returncode:
            raise ClusterError(f"{package.name} cannot be unpacked: {done.stderr.strip()}")
        for name in PROGRAMS:
            (Path(new) / "content" / "usr" / "bin" / name).replace(folder / name)


def _download(folder: Path) -> None:
    download = ["apt-get", "download", "-q", "prometheus"]
    for command in (download, ["apt-get", "update", "-q"], download):
        done = _run(command, folder)
        if command is download and done.returncode == 0:
            return
    raise MissingError(f"Install the Debian package prometheus, then try again: {done.stderr.strip()}")


def _run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
