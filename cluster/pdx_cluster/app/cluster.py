"""One cluster in one state folder: up, down, also after a crash."""

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
"""Limit for a network namespace to end after its processes. Orphaned TCP connections keep it alive while they
retransmit, for about 100 s."""


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
        """The certificate that signs the API server's, as a PEM file."""
        return self.plane.credentials.authority

    @property
    def audit_log(self) -> Path:
        """The API server's audit log of writes, in a cluster that is `audited`."""
        return self.plane.audit_log

    @property
    def token(self) -> str:
        """The administrator's bearer token."""
        return self.plane.credentials.token("admin")

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 120.0) -> str:
        """Return what kubectl prints; raises ClusterError with its error."""
        return run([self.plane.programs["kubectl"], *arguments], stdin, timeout_seconds, self._environment())

    def helm(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 120.0) -> str:
        """Return what helm prints; raises ClusterError with its error."""
        helm = kubernetes.cluster_programs([kubernetes.HELM])["helm"]
        return run([helm, *arguments], stdin, timeout_seconds, self._environment())

    def stop_apiserver(self, grace_seconds: float = 2.0) -> None:
        """Stop the API server; with a grace period of 0, kill it."""
        self.plane.stop_apiserver(grace_seconds)

    def start_apiserver(self) -> None:
        """Start the API server at the same address."""
        self.plane.start_apiserver()

    def restart_apiserver(self, down_seconds: float = 0.0) -> None:
        """Stop the API server, start it again after `down_seconds`, and wait until it is ready."""
        self.plane.restart_apiserver(down_seconds)

    def get(self, path: str) -> str:
        """Return the body of a GET to the API server as administrator."""
        return self.plane.get(path)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the API server's series of that name; each label must match its whole regular expression.

        For example `metric("apiserver_request_total", verb="POST|PUT|PATCH|APPLY|DELETE")`. Without a series, it is 0.
        """
        return sum_series(self.get("/metrics"), name, labels)

    def _environment(self) -> dict[str, str]:
        home = self.plane.folder / "helm"
        folders = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        # By default, kubectl caches discovery under HOME; this cluster is temporary.
        return {**os.environ, **folders, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(home / "discovery")}


def up(folder: Path, report: Report, *, with_node: bool = False, bound: bool = False, audited: bool = False) -> Cluster:
    """Start a cluster with its files in `folder`, after removing what an earlier one left there.

    With `bound`, its processes end with the calling thread, however that ends. With `audited`, the API server logs
    who writes what.
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
        return _start(folder, supervisor, paths, with_node, audited)
    except BaseException:
        # The logs stay, to explain the error; the next `up` or `down` removes them.
        _end(folder)
        raise


def down(folder: Path) -> None:
    """End everything that runs for `folder` and remove it. It works also after a crash, and without a cluster."""
    _end(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise ClusterError(f"{folder} cannot be removed.")


def load(folder: Path) -> Cluster | None:
    """Return the cluster that runs in `folder`; None if there is none."""
    supervisor = Supervisor(folder)
    plane = processes.load(folder, supervisor)
    if plane is None or supervisor.find("kube-apiserver") is None:
        return None
    namespaces = network.load(folder)
    return Cluster(plane, Node(folder / "node", namespaces, plane) if namespaces else None)


def _start(folder: Path, supervisor: Supervisor, paths: dict[str, Path], with_node: bool, audited: bool) -> Cluster:
    namespaces = network.create(folder, supervisor) if with_node else None
    location = namespaces.location if namespaces else processes.ON_LOOPBACK
    plane = processes.prepare(folder, location, paths, supervisor, audited=audited)
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
        raise ClusterError(f"The interface {device} still exists after its processes have ended: see `lsns -t net`.")
    if not cgroups.remove(device):
        raise ClusterError(f"The control group {device} under {cgroups.ROOT} still holds processes.")
    remove_mount_points()


def sum_series(exposition: str, name: str, labels: Mapping[str, str]) -> float:
    """Return the sum of the matching series in Prometheus' text format."""
    total = 0.0
    for line in exposition.splitlines():
        found = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
        if found is None:
            continue
        present = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[1] or ""))
        if all(re.fullmatch(pattern, present.get(label, "")) for label, pattern in labels.items()):
            total += float(found[2])
    return total
