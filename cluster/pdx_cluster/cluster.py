"""One cluster in one state folder: up, down, after a crash too."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdx_cluster import control_plane, programs
from pdx_cluster.control_plane import ControlPlane
from pdx_cluster.errors import ClusterError
from pdx_cluster.processes import Supervisor
from pdx_cluster.programs import Report


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    plane: ControlPlane

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
        helm = programs.cluster_programs([programs.HELM])["helm"]
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


def up(folder: Path, report: Report, *, bound: bool = False) -> Cluster:
    """Bring up a control plane whose files are in `folder`."""
    paths = programs.cluster_programs(programs.CONTROL_PLANE, report)
    folder.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(folder, bound)
    plane = control_plane.prepare(folder, control_plane.ON_LOOPBACK, paths, supervisor)
    try:
        plane.start()
    except BaseException:
        supervisor.kill_all()
        raise
    return Cluster(plane)


def down(folder: Path) -> None:
    """End everything that ran for `folder` and remove it; nothing to do is fine."""
    Supervisor(folder).kill_all()
    shutil.rmtree(folder, ignore_errors=True)


def run(
    command: list[str | Path],
    stdin: str | None = None,
    timeout_seconds: float = 120.0,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Standard output of a command; ClusterError with its complaint when it fails or takes too long."""
    words = " ".join([Path(command[0]).name, *(str(word) for word in command[1:6])])
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"`{words}` took more than {timeout_seconds:.0f} s.") from error
    if done.returncode:
        raise ClusterError(f"`{words}` ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


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
