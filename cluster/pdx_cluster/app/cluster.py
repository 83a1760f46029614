"""One cluster in one state folder: up, down, after a crash too."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdx_cluster.control_plane import processes
from pdx_cluster.control_plane.processes import ControlPlane
from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.node import cgroups, network
from pdx_cluster.node.node import Node, remove_mount_points
from pdx_cluster.programs import kubernetes, packages
from pdx_cluster.programs.kubernetes import Report
from pdx_cluster.system.processes import Supervisor, wait_until
from pdx_cluster.system.shell import run

_NAMESPACE_SECONDS: Final = 180.0
"""How long a network namespace may outlive its processes: TCP connections that nobody owns any more and that nobody
answers hold it while they send again, for some 100 s."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    plane: ControlPlane
    node: Node | None = None

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.plane.kubeconfig

    @property
    def url(self) -> str:
        """Base URL of the API server."""
        return self.plane.url

    @property
    def authority(self) -> Path:
        """The certificate that the API server's is signed by, as a PEM file."""
        return self.plane.credentials.authority

    @property
    def token(self) -> str:
        """The administrator's bearer token."""
        return self.plane.credentials.token("admin")

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 120.0) -> str:
        """What kubectl prints; ClusterError with what it complains about when it fails."""
        return run([self.plane.programs["kubectl"], *arguments], stdin, timeout_seconds, self._environment())

    def helm(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 120.0) -> str:
        """What helm prints; ClusterError with what it complains about when it fails."""
        helm = kubernetes.cluster_programs([kubernetes.HELM])["helm"]
        return run([helm, *arguments], stdin, timeout_seconds, self._environment())

    def stop_apiserver(self, grace_seconds: float = 2.0) -> None:
        """Take the API server away; a grace of 0 kills it."""
        self.plane.stop_apiserver(grace_seconds)

    def start_apiserver(self) -> None:
        """Bring it back at the same address."""
        self.plane.start_apiserver()

    def restart_apiserver(self, down_seconds: float = 0.0) -> None:
        """Stop the API server, leave it away for a while, start it again, and wait until it is ready."""
        self.plane.restart_apiserver(down_seconds)

    def get(self, path: str) -> str:
        """Body of a GET to the API server as administrator."""
        return self.plane.get(path)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the API server's series of that name whose labels match, each value as a whole regular expression.

        For example `metric("apiserver_request_total", verb="POST|PUT|PATCH|APPLY|DELETE")`. No series is 0.
        """
        return sum_series(self.get("/metrics"), name, labels)

    def _environment(self) -> dict[str, str]:
        home = self.plane.folder / "helm"
        folders = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        # kubectl caches discovery under HOME otherwise, for a cluster that will not exist again.
        return {**os.environ, **folders, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(home / "discovery")}


def up(folder: Path, report: Report, *, with_node: bool = False, bound: bool = False) -> Cluster:
    """Bring up a cluster whose files are in `folder`; what a dead one left there is removed first.

    With `bound` its processes die with the thread that called, whatever it dies of.
    """
    down(folder)
    if with_node:
        if os.geteuid() != 0:
            raise MissingError("A node that runs containers needs root; a control plane alone does not.")
        packages.require(packages.COMMANDS, report, plugins=True)
    paths = kubernetes.cluster_programs([*kubernetes.CONTROL_PLANE, *(kubernetes.NODE if with_node else ())], report)
    folder.mkdir(parents=True)
    supervisor = Supervisor(folder, bound)
    try:
        return _start(folder, supervisor, paths, with_node)
    except BaseException:
        # The logs stay for whoever reads the error; the next `up` or `down` removes them.
        _end(folder)
        raise


def down(folder: Path) -> None:
    """End everything that ran for `folder` and remove it; nothing to do is fine, and so is a cluster that crashed."""
    _end(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise ClusterError(f"{folder} cannot be removed.")


def load(folder: Path) -> Cluster | None:
    """The cluster that runs from `folder`."""
    supervisor = Supervisor(folder)
    plane = processes.load(folder, supervisor)
    if plane is None or supervisor.find("kube-apiserver") is None:
        return None
    namespaces = network.load(folder)
    return Cluster(plane, Node(folder / "node", namespaces, plane) if namespaces else None)


def _start(folder: Path, supervisor: Supervisor, paths: dict[str, Path], with_node: bool) -> Cluster:
    namespaces = network.create(folder, supervisor) if with_node else None
    place = namespaces.place if namespaces else processes.ON_LOOPBACK
    plane = processes.prepare(folder, place, paths, supervisor)
    plane.start()
    if namespaces is None:
        return Cluster(plane)
    node = Node(folder / "node", namespaces, plane)
    node.start()
    return Cluster(plane, node)


def _end(folder: Path) -> None:
    Supervisor(folder).kill_all()
    device = network.recorded_device(folder)
    if device is None:
        return
    if not wait_until(lambda: not network.exists(device), _NAMESPACE_SECONDS):
        raise ClusterError(f"The interface {device} outlives its processes: see `lsns -t net`.")
    if not cgroups.remove(device):
        raise ClusterError(f"The control group {device} under {cgroups.ROOT} still holds processes.")
    remove_mount_points()


def sum_series(exposition: str, name: str, labels: Mapping[str, str]) -> float:
    """Sum of the matching series in Prometheus' text format."""
    total = 0.0
    for line in exposition.splitlines():
        found = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
        if found is None:
            continue
        has = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[1] or ""))
        if all(re.fullmatch(pattern, has.get(label, "")) for label, pattern in labels.items()):
            total += float(found[2])
    return total
