"""Simulated nodes, for tests at scale: their pods become Ready and end at once, and run nothing."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pdx_cluster.app.cluster import Cluster
from pdx_cluster.programs import kubernetes
from pdx_cluster.programs.kubernetes import Report

MARK: Final = "kwok.x-k8s.io/node"
"""Annotation of simulated nodes."""
ROOMY: Final[Mapping[str, str]] = {
    "cpu": "1k",
    "memory": "16Ti",
    "ephemeral-storage": "16Ti",
    "pods": "1k",
    "nvidia.com/gpu": "1k",
    "rdma/hca": "1k",
}
"""Capacity of one node: enough for every pod."""


def start(cluster: Cluster, nodes: int, report: Report, *, first: int = 0, offers: Mapping[str, str] = ROOMY) -> None:
    """Add `nodes` simulated nodes, from `simulated-FIRST`, to a control plane, and wait until they are Ready."""
    kwok = kubernetes.cluster_programs([kubernetes.KWOK], report)["kwok"]
    supervisor = cluster.plane.supervisor
    if supervisor.find("kwok") is None:
        supervisor.start(
            "kwok",
            [
                *cluster.plane.location.enter,
                kwok,
                f"--config={kubernetes.TOOLS / 'kwok' / 'stages.yaml'}",
                f"--kubeconfig={cluster.plane.credentials.kubeconfig('kwok')}",
                "--manage-all-nodes=false",
                # Without leases, Kubernetes treats a node as lost after 40 s, and its pods as not ready.
                "--node-lease-duration-seconds=40",
                f"--manage-nodes-with-annotation-selector={MARK}=fake",
                # No server for logs and exec, because it listens on every address.
                "--node-port=0",
            ],
        )
    items = [node(number, offers) for number in range(first, first + nodes)]
    cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    supervisor.require("kwok", lambda: _ready(cluster) >= first + nodes, 60)


def node(number: int, offers: Mapping[str, str]) -> dict[str, Any]:
    """Return the object of one simulated node; its range of pod addresses is unique."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"simulated-{number}",
            "annotations": {MARK: "fake"},
            "labels": {"type": "simulated", "kubernetes.io/hostname": f"simulated-{number}"},
        },
        "spec": {"podCIDR": f"10.{128 + number // 64}.{number % 64 * 4}.0/22"},
        "status": {"allocatable": dict(offers), "capacity": dict(offers)},
    }


def _ready(cluster: Cluster) -> int:
    path = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
    return cluster.kubectl("get", "nodes", "-l", "type=simulated", "-o", path).split().count("True")
