"""Packages of the system that a node needs, installed with apt-get if possible."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.programs.kubernetes import Report

CNI_FOLDERS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
COMMANDS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "openssl": "openssl",
}
"""Command -> Debian package."""
IMAGE_COMMANDS: Final = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
"""What building images without a daemon needs in addition."""


def cni_folder() -> Path | None:
    """Return the folder of the network plugins; None if they are not installed."""
    return next((folder for folder in CNI_FOLDERS if (folder / "ptp").is_file()), None)


def missing(commands: dict[str, str], which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return the Debian packages of the missing commands."""
    return sorted({package for command, package in commands.items() if which(command) is None})


def require(commands: dict[str, str], report: Report, *, plugins: bool = False) -> None:
    """Install what is missing; raises MissingError with the packages if this process cannot."""
    required = missing(commands) + (["containernetworking-plugins"] if plugins and cni_folder() is None else [])
    if not required:
        return
    names = " ".join(required)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingError(f"Install {names} (Debian packages), then try again.")
    report(f"Installing {names}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *required]
    for command in (install, ["apt-get", "update", "-q"], install):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if command is install and done.returncode == 0:
            return
    raise ClusterError(f"apt-get could not install {names}: {done.stderr.strip()}")
