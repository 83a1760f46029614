"""`helm upgrade` from the recorded PDX 0.1.0, with its operator and running objects."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdx_cluster.app.cluster import Cluster
from pdx_operator.kube.resources import DEPLOYMENT, KIND_OF, POD
from tests.charts.chart import CHART, NAMESPACE
from tests.charts.test_rights import kubeconfig
from tests.cluster.runtime.harness import Api, Operator, eventually, free_port, kubelets
from tests.component.skew.record import CHART as OLD_CHART
from tests.component.skew.record import WHEEL

pytestmark = pytest.mark.timeout(300)

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
        flags = json.loads(cluster.kubectl("get", "deployment/pdx-operator", f"-n={NAMESPACE}", "--output=json"))
        args = flags["spec"]["template"]["spec"]["containers"][0]["args"]
        own = [flag for flag in args if not flag.startswith("--health-port")]
        operator = Operator.start(kubeconfig(cluster, tmp_path), tmp_path, *own, f"--own-namespace={NAMESPACE}")
        try:
            operator.wait_until_working()
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
