"""Finds Prometheus, promtool and Alertmanager on PATH, or unpacks Debian's packages into a cache."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.programs.kubernetes import Report, cache_root

PACKAGES: Final = {"prometheus": ("prometheus", "promtool"), "prometheus-alertmanager": ("prometheus-alertmanager",)}
"""Programs by Debian's package. Other systems name the last one alertmanager."""
PROGRAMS: Final = tuple(name for names in PACKAGES.values() for name in names)

_TEMPLATES: Final = b"/usr/share/prometheus/alertmanager"
"""Where Debian's Alertmanager reads its templates. An unpacked one reads them from its working directory instead: the
program has this path as a constant, and a path of slashes has the same length."""


def prometheus_programs(report: Report = lambda line: None) -> dict[str, Path]:
    """Return the paths of the programs; raises MissingError without them, ClusterError for a broken package."""
    found = {name: shutil.which(name) for name in PROGRAMS}
    if all(found.values()):
        return {name: Path(path) for name, path in found.items() if path}
    folder = cache_root(os.environ).parent / "prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for package, names in PACKAGES.items():
            if not all((folder / name).is_file() for name in names):
                _unpack(package, folder, report)
    return {name: folder / name for name in PROGRAMS}


def _unpack(name: str, folder: Path, report: Report) -> None:
    """Unpack a package. Installing it needs root and starts a service."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingError(f"Install {' and '.join(PACKAGES[name])} (Debian package {name}), then try again.")
    report(f"Unpacking Debian's {name} into {folder}")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as new:
        _download(name, Path(new))
        package = next(Path(new).glob(f"{name}_*.deb"))
        done = _run(["dpkg-deb", "-x", str(package), "content"], Path(new))
        if done.returncode:
            raise ClusterError(f"{package.name} cannot be unpacked: {done.stderr.strip()}")
        for program in PACKAGES[name]:
            found = Path(new) / "content" / "usr" / "bin" / program
            found.write_bytes(found.read_bytes().replace(_TEMPLATES, b".".ljust(len(_TEMPLATES), b"/")))
            for template in (Path(new) / "content").glob(f"{_TEMPLATES.decode()[1:]}/*.tmpl"):
                template.replace(folder / template.name)
            found.replace(folder / program)


def _download(package: str, folder: Path) -> None:
    download = ["apt-get", "download", "-q", package]
    for command in (download, ["apt-get", "update", "-q"], download):
        done = _run(command, folder)
        if command is download and done.returncode == 0:
            return
    raise MissingError(f"Install the Debian package {package}, then try again: {done.stderr.strip()}")


def _run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
