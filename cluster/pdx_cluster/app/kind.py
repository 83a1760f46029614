"""kind instead of an own node, if Docker runs on this machine."""

import shutil
from pathlib import Path
from typing import Final

from pdx_cluster.errors import ClusterError
from pdx_cluster.programs.kubernetes import Report
from pdx_cluster.system.shell import run

NAME: Final = "pdx"
_MARK: Final = "kind"
"""Folder in the state folder. It marks a cluster of kind, and holds its kubeconfig."""


def is_available() -> bool:
    """Whether kind is installed and a Docker daemon answers."""
    if shutil.which("kind") is None or shutil.which("docker") is None:
        return False
    try:
        run(["docker", "info"], timeout_seconds=10)
    except ClusterError:
        return False
    return True


def kubeconfig(folder: Path) -> Path | None:
    """Return the kubeconfig of the cluster that `up` created for this folder; None if there is none."""
    path = folder / _MARK / "kubeconfig"
    return path if path.is_file() else None


def up(folder: Path, report: Report) -> Path:
    """Start the cluster if it does not run, and return its kubeconfig."""
    path = folder / _MARK / "kubeconfig"
    path.parent.mkdir(parents=True, exist_ok=True)
    if NAME not in run(["kind", "get", "clusters"]).split():
        report("Docker runs: kind starts the cluster")
        run(["kind", "create", "cluster", f"--name={NAME}", "--wait=120s", f"--kubeconfig={path}"], timeout_seconds=600)
    run(["kind", "export", "kubeconfig", f"--name={NAME}", f"--kubeconfig={path}"])
    return path


def load(archive: Path) -> None:
    """Import an image."""
    run(["kind", "load", "image-archive", str(archive), f"--name={NAME}"], timeout_seconds=600)


def down(folder: Path) -> None:
    """Remove the cluster if `up` created it for this folder."""
    mark = folder / _MARK
    if mark.is_dir():
        run(["kind", "delete", "cluster", f"--name={NAME}", f"--kubeconfig={mark / 'kubeconfig'}"])
        shutil.rmtree(mark)
