"""`helm upgrade` from the recorded version of PDX, with its operator and running objects."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.operator import FOLDER
from benchmarks.soak.results import print_line, record
from pdx_api.kube.kinds import DEPLOYMENT, PDDEPLOYMENT, POD
from pdx_api.spec.parse import parse
from pdx_cluster.app.cluster import Cluster
from tests.charts.chart import CHART, NAMESPACE
from tests.charts.clients import Clients
from tests.charts.node import Node
from tests.charts.test_rights import kubeconfig
from tests.cluster.runtime.harness import Api, Operator, eventually, kubelets
from tests.component.skew.record import CHART as OLD_CHART
from tests.component.skew.record import EXAMPLES, WHEEL
from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)

GATEWAYS = "pdx.dev/role=gateway"
SPEC = {
    "model": {"name": "m"},
    "kvTransfer": {"connector": "LMCache"},
    "prefill": {"replicas": 1},
    "decode": {"replicas": 2},
}


def _upgrade(cluster: Cluster) -> None:
    """To the chart of this checkout, with another image for the gateways: that of the next version."""
    flags = ("--namespace", NAMESPACE, "--reset-then-reuse-values", "--set", "gateway.image.tag=next")
    cluster.helm("upgrade", "pdx", str(CHART), *flags)


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


def test_an_upgrade_loses_no_request(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    spec = {"model": {"name": "m"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
    print_line("upgrade", _upgraded_under_load(cluster, namespace, tmp_path, spec, seconds=3))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_upgrade_of_many_loses_no_request(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
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
            eventually(lambda: _rests(api, namespace), within=100, what="at rest before the upgrade")
            before, gateways = _pods(api, namespace), _gateways(api, namespace)
            clients = Clients(cluster, namespace, GATEWAYS)
            eventually(lambda: len(clients.read_endpoints()) == len(gateways), what="endpoints")
            with clients:
                time.sleep(seconds)
                node.wheel = None
                _upgrade(cluster)
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


def test_an_upgrade_replaces_no_engine(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.helm("install", "pdx", str(OLD_CHART), "--namespace", NAMESPACE)
    api = Api(cluster)
    with kubelets(api, namespace):
        previous = _previous_operator(kubeconfig(cluster, tmp_path), tmp_path)
        try:
            api.deploy(namespace, spec=SPEC)
            eventually(lambda: api.is_ready(namespace), what="ready before the upgrade")
            eventually(lambda: api.condition(namespace, "Progressing")["status"] == "False", what="settled")
            before, revision = _pods(api, namespace), api.status(namespace)["revision"]
            _upgrade(cluster)
        finally:
            previous.end()
        operator = _upgraded_operator(cluster, tmp_path)
        try:
            eventually(lambda: "operator" in api.status(namespace), what="claimed")
            eventually(lambda: api.is_ready(namespace), what="ready")
            eventually(lambda: api.condition(namespace, "Progressing")["status"] == "False", what="settled")
            assert (_pods(api, namespace), api.status(namespace)["revision"]) == (before, revision)
            engines = [d for d in api.items(DEPLOYMENT, namespace) if "pdx.dev/revision" in d["metadata"]["labels"]]
            assert {d["metadata"]["annotations"]["deployment.kubernetes.io/revision"] for d in engines} == {"1"}
        finally:
            operator.end()
        assert "forbidden" not in operator.text().lower()


def _engine_pods(api: Api, namespace: str) -> dict[str, str]:
    """The engines' pods by uid."""
    pods = api.items(POD, namespace, labelSelector="pdx.dev/role in (prefill, decode, aggregated)")
    return {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}


def _all_reported(api: Api, namespace: str, operator: str = "") -> bool:
    """Whether every object's newest spec has been reconciled, by an operator that claims objects if one is named."""
    bodies = api.items(PDDEPLOYMENT, namespace)
    statuses = [(body["metadata"]["generation"], body.get("status") or {}) for body in bodies]
    return all(status.get("observedGeneration") == generation for generation, status in statuses) and all(
        status.get("operator", "").startswith(operator) for _, status in statuses
    )


def test_every_example_keeps_its_engines_through_an_upgrade(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    cluster.helm("install", "pdx", str(OLD_CHART), "--namespace", NAMESPACE)
    api, bodies = Api(cluster), list(yaml.safe_load_all(EXAMPLES.read_text()))
    previous = _previous_operator(kubeconfig(cluster, tmp_path), tmp_path)
    try:
        for body in bodies:
            api.create(PDDEPLOYMENT, namespace, body)
        eventually(lambda: _all_reported(api, namespace), what="reconciled before the upgrade")
        desired = sum(
            pool.replicas or 1 for body in bodies for pool in parse(body, tolerant=True).spec.pools().values()
        )
        eventually(lambda: len(_engine_pods(api, namespace)) == desired, what="engines")
        before = _engine_pods(api, namespace)
        _upgrade(cluster)
    finally:
        previous.end()
    operator = _upgraded_operator(cluster, tmp_path)
    try:
        eventually(lambda: _all_reported(api, namespace, NAMESPACE), what="reconciled after the upgrade")
        assert _engine_pods(api, namespace) == before
    finally:
        operator.end()
    assert "Traceback" not in operator.text()
