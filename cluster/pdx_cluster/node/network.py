"""The node's own namespaces: its interfaces, routes, iptables, mounts and processes are not the machine's.

One process holds a network, a mount and a process namespace. When it ends, the kernel ends every process in them, and
mounts, interfaces and iptables chains end with the last process.
"""

import json
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from pdx_cluster.control_plane.processes import Location
from pdx_cluster.errors import ClusterError
from pdx_cluster.system.processes import Supervisor
from pdx_cluster.system.shell import run

HOLDER: Final = "node"
"""Name of the recorded process that holds the namespaces."""
RECORD: Final = "namespaces.json"
CLUSTERS: Final = 16
"""Limit of clusters that run on one machine at the same time."""

# RFC 2544's range for benchmarks of network devices, which real networks do not use.
_LINKS_AND_PODS: Final = tuple(IPv4Network("198.18.0.0/16").subnets(new_prefix=20))
_SERVICES: Final = tuple(IPv4Network("198.19.0.0/16").subnets(new_prefix=20))


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one cluster on this machine."""

    index: int

    @property
    def device(self) -> str:
        """The interface at the machine's end of the link."""
        return f"pdx{self.index}"

    @property
    def machine(self) -> str:
        """The address of the machine's end of the link to the node."""
        return str(_LINKS_AND_PODS[self.index][1])

    @property
    def node(self) -> str:
        """The address of the node's end."""
        return str(_LINKS_AND_PODS[self.index][2])

    @property
    def pods(self) -> IPv4Network:
        """The range of the pods' addresses."""
        return list(_LINKS_AND_PODS[self.index].subnets(new_prefix=24))[1]

    @property
    def services(self) -> IPv4Network:
        """The range of the Services' addresses."""
        return _SERVICES[self.index]

    @property
    def dns(self) -> str:
        """The address of the DNS Service."""
        return str(self.services[10])


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Namespaces that exist."""

    init: int
    """Pid of their first process, in the machine's numbering."""
    addresses: Addresses

    @property
    def enter(self) -> tuple[str, ...]:
        """Command prefix that enters all of them."""
        return ("nsenter", f"--target={self.init}", "--net", "--mount", "--pid", "--")

    @property
    def location(self) -> Location:
        """The addresses of a control plane that the node can reach."""
        services = self.addresses.services
        enter = ("nsenter", f"--net=/proc/{self.init}/ns/net", "--")
        return Location(self.addresses.node, str(services), str(services[1]), enter)


def create(folder: Path, supervisor: Supervisor) -> Namespaces:
    """Create the namespaces, link them to the machine, and record them in `folder`."""
    holder = supervisor.start(
        HOLDER,
        [
            "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "slave",
            # If the first process ignores SIGCHLD, the kernel reaps its orphans.
            "sh", "-c", "trap '' CHLD; echo ready; exec sleep infinity",
        ],
    )  # fmt: skip
    supervisor.require(HOLDER, lambda: "ready" in supervisor.log(HOLDER).read_text(), 10)
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    init = int(children[0])
    addresses = _claim(init)
    (folder / RECORD).write_text(json.dumps({"init": init, "index": addresses.index}))
    _link(init, addresses)
    return Namespaces(init, addresses)


def load(folder: Path) -> Namespaces | None:
    """Return the namespaces that `create` recorded; None if there are none."""
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return None
    return Namespaces(record["init"], Addresses(record["index"]))


def any_is_up() -> bool:
    """Whether a cluster with a node runs on this machine."""
    return any(exists(Addresses(index).device) for index in range(CLUSTERS))


def exists(device: str) -> bool:
    """Whether the machine has that interface."""
    return Path(f"/sys/class/net/{device}").exists()


def recorded_device(folder: Path) -> str | None:
    """Return the recorded interface of the cluster in `folder`, whether it exists or not."""
    namespaces = load(folder)
    return namespaces.addresses.device if namespaces else None


def _link(init: int, addresses: Addresses) -> None:
    inside = ["nsenter", f"--net=/proc/{init}/ns/net", "--"]
    prefix = _LINKS_AND_PODS[0].max_prefixlen - 2
    for command in (
        ["ip", "address", "add", f"{addresses.machine}/{prefix}", "dev", addresses.device],
        ["ip", "link", "set", addresses.device, "up"],
        [*inside, "ip", "address", "add", f"{addresses.node}/{prefix}", "dev", "eth0"],
        [*inside, "ip", "link", "set", "lo", "up"],
        [*inside, "ip", "link", "set", "eth0", "up"],
        [*inside, "ip", "route", "add", "default", "via", addresses.machine],
        [*inside, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"],
        ["ip", "route", "add", str(addresses.pods), "via", addresses.node],
        ["ip", "route", "add", str(addresses.services), "via", addresses.node],
    ):
        run([*command])


def _claim(init: int) -> Addresses:
    """Claim the first free index, by creating its interface."""
    for index in range(CLUSTERS):
        addresses = Addresses(index)
        if exists(addresses.device):
            continue
        try:
            run(["ip", "link", "add", addresses.device, "type", "veth", "peer", "name", "eth0", "netns", str(init)])
        except ClusterError as error:
            if "File exists" not in str(error):
                raise
        else:
            return addresses
    raise ClusterError(f"{CLUSTERS} clusters already run on this machine: end one with `make cluster-down`.")
