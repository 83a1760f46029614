"""What is kept of a cluster in which a step has failed."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from pdx_cluster.app import cluster
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError

_SECONDS: Final = 10.0
"""Limit for each command: the API server may be what has failed."""
_OBJECTS: Final = {
    "pods.txt": ("get", "pods", "-A", "-o", "wide"),
    "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
    "nodes.txt": ("describe", "nodes"),
    "objects.yaml": ("get", "pdd,deployments,pods", "-A", "-o", "yaml"),
}


def keep(state: Path, error: str) -> Path:
    """Write the error, the logs of Kubernetes' programs and of all pods, and the objects; return their folder."""
    into = Path(tempfile.mkdtemp(prefix="pdx-e2e-logs-"))
    (into / "error.txt").write_text(error)
    if (state / "logs").is_dir():
        shutil.copytree(state / "logs", into, dirs_exist_ok=True)
    running = cluster.load(state)
    if running is not None:
        _keep_objects(running, into)
    return into


def _keep_objects(running: Cluster, into: Path) -> None:
    for name, command in _OBJECTS.items():
        _write(running, into / name, *command)
    for pod in _kubectl(running, "get", "pods", "-A", "--no-headers").splitlines():
        namespace, name = pod.split()[:2]
        _write(running, into / f"{namespace}.{name}.log", "logs", "-n", namespace, name, "--all-containers", "--prefix")


def _write(running: Cluster, path: Path, *command: str) -> None:
    path.write_text(_kubectl(running, *command))


def _kubectl(running: Cluster, *command: str) -> str:
    with suppress(ClusterError):
        return running.kubectl(*command, timeout_seconds=_SECONDS)
    return ""
