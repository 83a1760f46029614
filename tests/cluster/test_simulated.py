"""Simulated nodes."""

from pdx_cluster.app.cluster import Cluster


def test_a_deployment_rolls_out_on_simulated_nodes(simulated_cluster: Cluster, namespace: str) -> None:
    simulated_cluster.kubectl(
        "create", "deployment", "many", "--image=none.invalid/none", "--replicas=30", "-n", namespace
    )
    simulated_cluster.kubectl("rollout", "status", "deployment/many", "-n", namespace, "--timeout=40s")
    path = "jsonpath={.items[*].status.podIP}"
    addresses = simulated_cluster.kubectl("get", "pods", "-n", namespace, "-o", path).split()
    assert len(addresses) == len(set(addresses)) == 30
