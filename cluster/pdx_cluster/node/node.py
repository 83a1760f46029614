"""A node that runs containers: containerd, kubelet, kube-proxy and CoreDNS in their own namespaces.

Limits: NetworkPolicies are not enforced, pods cannot reach the internet, and images are imported, not pulled.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdx_cluster.control_plane.processes import ControlPlane
from pdx_cluster.errors import ClusterError
from pdx_cluster.node import cgroups, images, network, node_config
from pdx_cluster.node.images import Image
from pdx_cluster.node.network import Namespaces
from pdx_cluster.programs.packages import cni_folder
from pdx_cluster.system.shell import run

NAME: Final = "pdx"
MARK: Final = ".pdx-cluster"
PAUSE_IMAGE: Final = "pdx.local/pause:1"
KERNEL_SETTINGS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Settings that kubelet writes for the whole machine. The node mounts files with these values over them."""


@dataclass(frozen=True, slots=True)
class Node:
    """The one node of a cluster."""

    folder: Path
    namespaces: Namespaces
    plane: ControlPlane

    def start(self) -> None:
        """Start everything and wait until the node is Ready."""
        self.folder.mkdir()
        self._prepare_namespaces()
        cgroups.create(self.namespaces.addresses.device)
        self._start_containerd()
        pause = {"pause": self.plane.programs["pdx-pause"].read_bytes()}
        self.import_image(Image(PAUSE_IMAGE, pause, entrypoint=("/pause",)))
        self._start_kubelet()
        self._start_proxy()
        self._start_dns()
        self.plane.supervisor.require("kubelet", self._is_ready, 90)

    def import_image(self, image: Image | Path) -> list[str]:
        """Load an image, or every image of a tar (docker-archive or OCI), and return the references.

        Pods use them with `imagePullPolicy: Never` or `IfNotPresent`.
        """
        path = images.write(image, self.folder / "import.tar") if isinstance(image, Image) else image
        output = self.ctr("images", "import", str(path.resolve()))
        return re.findall(r"unpacking (\S+)", output)

    def ctr(self, *arguments: str) -> str:
        """Run containerd's client in the namespace that Kubernetes uses, and return its output."""
        command = ["ctr", f"--address={node_config.SOCKET}", "--namespace=k8s.io", *arguments]
        return run([*self.namespaces.enter, *command])

    def _prepare_namespaces(self) -> None:
        settings = self.folder / "sysctl"
        lines = ["mount -t tmpfs -o mode=755 tmpfs /run", "mkdir -p /run/lock /run/netns"]
        make_mount_points()
        lines += [f"mount -t tmpfs -o mode=755 tmpfs {name}" for name in node_config.MACHINE_FOLDERS]
        for name, value in KERNEL_SETTINGS.items():
            path = settings / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value + "\n")
            lines.append(f"mount --bind {path} /proc/sys/{name}")
        run([*self.namespaces.enter, "sh", "-euc", "\n".join(lines)])

    def _start_containerd(self) -> None:
        plugins = cni_folder()
        assert plugins is not None, "packages.require runs before"
        (self.folder / "cni").mkdir()
        network = node_config.cni(self.namespaces.addresses, self.folder)
        (self.folder / "cni" / "10-pdx.conflist").write_text(json.dumps(network, indent=2))
        config = self.folder / "containerd.toml"
        config.write_text(node_config.containerd(self.folder, plugins, PAUSE_IMAGE))
        self._start("containerd", "containerd", f"--config={config}")
        self.plane.supervisor.require("containerd", self._containerd_answers, 30)

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except ClusterError:
            return False
        return True

    def _start_kubelet(self) -> None:
        (self.folder / "resolv.conf").write_text("")
        config = self.folder / "kubelet.json"
        credentials = self.plane.credentials
        addresses = self.namespaces.addresses
        config.write_text(json.dumps(node_config.kubelet(self.folder, addresses, credentials), indent=2))
        self._start(
            "kubelet",
            self.plane.programs["kubelet"],
            f"--config={config}",
            f"--kubeconfig={credentials.kubeconfig('kubelet')}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--hostname-override={NAME}",
            f"--node-ip={addresses.node}",
        )

    def _start_proxy(self) -> None:
        config = self.folder / "proxy.json"
        kubeconfig = self.plane.credentials.kubeconfig("proxy")
        config.write_text(json.dumps(node_config.proxy(self.namespaces.addresses, NAME, kubeconfig), indent=2))
        self._start("kube-proxy", self.plane.programs["kube-proxy"], f"--config={config}")

    def _start_dns(self) -> None:
        addresses = self.namespaces.addresses
        objects = node_config.dns_objects(addresses)
        self._kubectl(["apply", "-f", "-"], stdin=json.dumps(objects))
        config = self.folder / "Corefile"
        config.write_text(node_config.corefile(addresses, self.plane.credentials.kubeconfig("coredns")))
        self._start("coredns", self.plane.programs["coredns"], f"-conf={config}")

    def _is_ready(self) -> bool:
        path = "jsonpath={.status.conditions[?(@.type=='Ready')].status} {.spec.taints}"
        try:
            return self._kubectl(["get", "node", NAME, "-o", path]).split() == ["True"]
        except ClusterError:
            return False

    def _kubectl(self, arguments: Sequence[str], stdin: str | None = None) -> str:
        kubectl = self.plane.programs["kubectl"]
        return run([kubectl, f"--kubeconfig={self.plane.kubeconfig}", *arguments], stdin)

    def _start(self, name: str, *command: str | Path) -> None:
        self.plane.supervisor.start(name, [*self.namespaces.enter, *command])


def make_mount_points() -> None:
    """Create the missing folders of the machine over which a node mounts, each with a mark."""
    for name in node_config.MACHINE_FOLDERS:
        folder = Path(name)
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / MARK).touch()


def remove_mount_points() -> None:
    """Remove the folders that `make_mount_points` created, unless another cluster uses them."""
    if network.any_is_up():
        return
    for name in node_config.MACHINE_FOLDERS:
        mark = Path(name) / MARK
        if mark.exists():
            mark.unlink()
            mark.parent.rmdir()
