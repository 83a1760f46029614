"""`helm upgrade` from the recorded PDX 0.1.0, with its operator and running objects."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.operator import FOLDER
from benchmarks.soak.results import print_line, record
from pdx_cluster.app.cluster import Cluster
from pdx_operator.kube.resources import DEPLOYMENT, KIND_OF, POD
from tests.charts.chart import CHART, NAMESPACE
from tests.charts.clients import Clients
from tests.charts.node import Node
from tests.charts.test_rights import kubeconfig
from tests.cluster.runtime.harness import Api, Operator, eventually, free_port, kubelets
from tests.component.skew.record import CHART as OLD_CHART
from tests.component.skew.record import WHEEL

pytestmark = pytest.mark.timeout(300)

GATEWAYS = "pdx.dev/role=gateway"
SPEC = {
    "model": {"name": "m"},
    "kvTransfer": {"connector": "LMCache"},
    "prefill": {"replicas": 1, "resources": {"limits": {"rdma/hca": 1}}},
    "decode": {"replicas": 2},
}


def _previous_operator(config: Path, folder: Path) -> Operator:
    log, port = folder / "previous.log", free_port()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "pdx_operator", "--health-port", str(port)],
            cwd=folder,
            stdout=out,
            stderr=out,
            env={**os.environ, "KUBECONFIG": str(config), "PYTHONPATH": str(WHEEL)},
        )
    return Operator(process, log, port)


def _pods(api: Api, namespace: str) -> dict[str, str]:
    """The pods of engines and side services by uid: their templates must not change."""
    return {
        pod["metadata"]["uid"]: pod["metadata"]["name"]
        for pod in api.items(POD, namespace)
        if pod["metadata"]["labels"].get("pdx.dev/role") != "gateway"
    }


def test_an_upgrade_from_0_1_0_loses_no_request(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    spec = {"model": {"name": "m"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
    print_line("upgrade", _upgraded_under_load(cluster, namespace, tmp_path, spec, seconds=3))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_upgrade_of_many_from_0_1_0_loses_no_request(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    gateway = {"replicas": 2, "workers": 2}
    spec = {"model": {"name": "m"}, "prefill": {"replicas": 3}, "decode": {"replicas": 4}, "gateway": gateway}
    record("upgrade", _upgraded_under_load(cluster, namespace, tmp_path, spec, seconds=300), FOLDER)


def _upgraded_under_load(
    cluster: Cluster, namespace: str, folder: Path, spec: dict[str, Any], *, seconds: float
) -> dict[str, Any]:
    """Clients send requests all the time, also for so long before and after the upgrade."""
    cluster.helm("install", "pdx", str(OLD_CHART), "--namespace", NAMESPACE)
    api = Api(cluster)
    with Node(cluster, namespace, folder, WHEEL) as node:
        previous = _previous_operator(kubeconfig(cluster, folder), folder)
        try:
            api.deploy(namespace, spec=spec)
            eventually(lambda: _rests(api, namespace), within=100, what="at rest with 0.1.0")
            before, gateways = _pods(api, namespace), _gateways(api, namespace)
            clients = Clients(cluster, namespace, GATEWAYS)
            eventually(lambda: len(clients.read_endpoints()) == len(gateways), what="endpoints")
            with clients:
                time.sleep(seconds)
                node.wheel = None
                cluster.helm("upgrade", "pdx", str(CHART), "--namespace", NAMESPACE, "--reset-then-reuse-values")
                previous.end()
                operator = _upgraded_operator(cluster, folder)
                try:
                    eventually(lambda: "operator" in api.status(namespace), what="claimed")
                    eventually(lambda: not _gateways(api, namespace) & gateways, within=100, what="new gateways")
                    eventually(lambda: _rests(api, namespace), within=100, what="at rest")
                    time.sleep(seconds)
                finally:
                    operator.end()
        finally:
            previous.end()
        assert _pods(api, namespace) == before
    assert not clients.lost, (len(clients.lost), clients.lost[:5])
    assert len(clients.used) == 2 * len(gateways), "gateways of both versions have served"
    return {"engines": len(before), "gateways": len(gateways), "served": clients.served, "lost": len(clients.lost)}


def _rests(api: Api, namespace: str) -> bool:
    return api.is_ready(namespace) and api.condition(namespace, "Progressing")["status"] == "False"


def _gateways(api: Api, namespace: str) -> set[str]:
    """The uids of gateway pods."""
    pods = api.items(POD, namespace, labelSelector=GATEWAYS)
    return {pod["metadata"]["uid"] for pod in pods}


def _upgraded_operator(cluster: Cluster, folder: Path) -> Operator:
    """This version, with the flags of the chart's Deployment."""
    deployment = json.loads(cluster.kubectl("get", "deployment/pdx-operator", f"-n={NAMESPACE}", "--output=json"))
    flags = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    own = [flag for flag in flags if not flag.startswith("--health-port")]
    config = kubeconfig(cluster, folder)
    return Operator.start(config, folder, *own, f"--own-namespace={NAMESPACE}").wait_until_working()


def test_an_upgrade_from_0_1_0_replaces_no_engine(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.helm("install", "pdx", str(OLD_CHART), "--namespace", NAMESPACE)
    api = Api(cluster)
    with kubelets(api, namespace):
        previous = _previous_operator(kubeconfig(cluster, tmp_path), tmp_path)
        try:
            api.deploy(namespace, spec=SPEC)
            eventually(lambda: api.is_ready(namespace), what="ready with 0.1.0")
            eventually(lambda: api.condition(namespace, "Progressing")["status"] == "False", what="settled")
            before, revision = _pods(api, namespace), api.status(namespace)["revision"]
            cluster.helm("upgrade", "pdx", str(CHART), "--namespace", NAMESPACE, "--reset-then-reuse-values")
        finally:
            previous.end()
        operator = _upgraded_operator(cluster, tmp_path)
        try:
            eventually(lambda: "operator" in api.status(namespace), what="claimed")
            eventually(lambda: not api.items(KIND_OF["Role"], namespace), what="the gateway's Role deleted")
            eventually(lambda: api.is_ready(namespace), what="ready")
            eventually(lambda: api.condition(namespace, "Progressing")["status"] == "False", what="settled")
            assert (_pods(api, namespace), api.status(namespace)["revision"]) == (before, revision)
            engines = [d for d in api.items(DEPLOYMENT, namespace) if "pdx.dev/revision" in d["metadata"]["labels"]]
            assert {d["metadata"]["annotations"]["deployment.kubernetes.io/revision"] for d in engines} == {"1"}
        finally:
            operator.end()
        assert "forbidden" not in operator.text().lower()
