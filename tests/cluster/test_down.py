"""A cluster leaves nothing on the machine, however it ended."""

import os
import signal
from pathlib import Path

import pytest

from pdx_cluster.app import cluster
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import MissingError
from pdx_cluster.node import cgroups, network, node_config
from pdx_cluster.system.processes import is_alive, wait_until
from pdx_cluster.system.shell import run

pytestmark = pytest.mark.timeout(300)


def traces(folder: Path, device: str) -> list[str]:
    """Everything on the machine that belongs to the cluster."""
    found = [str(folder)] if folder.exists() else []
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    found += [command.decode() for command in commands if str(folder).encode() in command]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    found += [line for line in run(["ip", "route"]).splitlines() if f" {device} " in line]
    found += [str(path) for path in cgroups.ROOT.glob(f"**/{device}")]
    found += [f"interface {device}"] if network.exists(device) else []
    return found


@pytest.fixture
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A cluster with a node and a running pod, for the test to end. Kubelet's sockets need a short path."""
    try:
        running = cluster.up(tmp_path_factory.mktemp("down") / "state", print, with_node=True, bound=True)
    except MissingError as error:
        pytest.skip(f"no node: {error}")
    image = "pdx.local/pause:1"
    running.kubectl("run", "holder", f"--image={image}", "--image-pull-policy=Never")
    running.kubectl("wait", "--for=condition=Ready", "pod/holder", "--timeout=30s")
    return running


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(frozenset[str](), id="nothing was killed"),
        pytest.param(frozenset({"node"}), id="the node's namespaces were killed"),
        pytest.param(frozenset({"kube-apiserver", "etcd", "containerd", "kubelet"}), id="the programs were killed"),
        pytest.param(None, id="everything was killed"),
    ],
)
def test_down_leaves_nothing(doomed: Cluster, killed: frozenset[str] | None) -> None:
    folder = doomed.plane.folder
    device = network.recorded_device(folder)
    assert device is not None
    assert traces(folder, device), "the test finds no cluster at all"
    for process in doomed.plane.supervisor.recorded():
        if killed is None or process.name in killed:
            os.kill(process.pid, signal.SIGKILL)
            wait_until(lambda process=process: not is_alive(process), 5)  # type: ignore[misc]
    cluster.down(folder)
    assert traces(folder, device) == []
    marked = [name for name in node_config.MACHINE_FOLDERS if Path(name, ".pdx-cluster").exists()]
    assert network.any_is_up() or not marked


def test_down_without_a_cluster_does_nothing(tmp_path: Path) -> None:
    cluster.down(tmp_path / "never")
    cluster.down(tmp_path / "never")


def test_up_replaces_what_a_crash_left(doomed: Cluster) -> None:
    folder = doomed.plane.folder
    for process in doomed.plane.supervisor.recorded():
        os.kill(process.pid, signal.SIGKILL)
    again = cluster.up(folder, print, bound=True)
    assert "holder" not in again.kubectl("get", "pods", "-A", "-o", "name")
    cluster.down(folder)
