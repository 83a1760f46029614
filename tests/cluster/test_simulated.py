"""Simulated nodes, and a rollout on one that is small."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdx_api.kube.kinds import POD
from pdx_api.names import ANNOTATION_ORDER, LABEL_ROLE
from pdx_cluster.app import kwok
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.harness import Api, Body, Operator, Sampled, eventually, grant, install, kubelets
from tests.small_node import CORES, operator_deployment

SMALL = "simulated-3"
"""Follows the nodes of `simulated_cluster`."""
SPEC: Body = {
    "model": {"name": "m"},
    "engine": {"podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": SMALL}}}},
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
    "gateway": {"podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": SMALL}}}},
}


def test_a_deployment_rolls_out_on_simulated_nodes(simulated_cluster: Cluster, namespace: str) -> None:
    simulated_cluster.kubectl(
        "create", "deployment", "many", "--image=none.invalid/none", "--replicas=30", "-n", namespace
    )
    simulated_cluster.kubectl("rollout", "status", "deployment/many", "-n", namespace, "--timeout=40s")
    path = "jsonpath={.items[*].status.podIP}"
    addresses = simulated_cluster.kubectl("get", "pods", "-n", namespace, "-o", path).split()
    assert len(addresses) == len(set(addresses)) == 30


@pytest.fixture
def small_node(simulated_cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Api]:
    """A node of two cores with a pod that requests what the operator does; the operator itself is a process."""
    offers = {"cpu": f"{CORES}", "memory": "8Gi", "ephemeral-storage": "64Gi", "pods": "110"}
    kwok.start(simulated_cluster, 1, print, first=3, offers=offers)
    install(simulated_cluster)
    operator = Operator.start(grant(simulated_cluster, tmp_path), tmp_path, "--namespace", namespace)
    api = Api(simulated_cluster)
    (container,) = operator_deployment()["spec"]["template"]["spec"]["containers"]
    kept = {name: container[name] for name in ("name", "image", "resources")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}}
    api.create(POD, namespace, {**pod, "spec": {"nodeName": SMALL, "containers": [kept]}})
    yield api
    operator.end()
    assert "Traceback" not in operator.text(), operator.text()


@pytest.mark.timeout(240)
def test_a_pair_without_requests_changes_its_order_on_two_cores(small_node: Api, namespace: str) -> None:
    """The change of order of `make cluster-e2e`: the scheduler is real, the engines run nothing."""
    api = small_node

    def through(order: str) -> bool:
        degraded = api.condition(namespace, "Degraded")
        assert degraded.get("reason") != "Unschedulable", degraded
        done = api.condition(namespace, "Progressing").get("status") == "False"
        return done and api.is_ready(namespace) and _orders(api, namespace) == {order}

    with kubelets(api, namespace, holds=lambda pod: "nodeName" not in pod["spec"]):
        api.deploy(namespace, spec=SPEC)
        eventually(lambda: through("PrefillFirst"), what="served")
        with Sampled(lambda: _engines(api, namespace)) as engines:
            api.change(namespace, {"kvTransfer": {"order": "DecodeFirst"}})
            eventually(lambda: through("DecodeFirst"), what="served in the other order")
    assert max(engines.values) == 4


def _pods(api: Api, namespace: str) -> list[Body]:
    """The engines' pods on the node."""
    found = api.items(POD, namespace, labelSelector=f"{LABEL_ROLE} in (prefill,decode)")
    return [pod for pod in found if "nodeName" in pod["spec"]]


def _engines(api: Api, namespace: str) -> int:
    return len(_pods(api, namespace))


def _orders(api: Api, namespace: str) -> set[str]:
    return {pod["metadata"]["annotations"][ANNOTATION_ORDER] for pod in _pods(api, namespace)}
