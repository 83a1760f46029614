"""What the operator asks the API server for, written down request by request, against what it may ask for."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pdx_api.kube.kinds import CHILD_KINDS, OPTIONAL_KINDS, PDDEPLOYMENT, POD
from pdx_api.names import API_VERSION, KIND, LABEL_DEPLOYMENT, ConditionType, gateway_name
from pdx_cluster.app.cluster import Cluster
from pdx_operator.app.permissions import ACCESS, OWN_ACCESS
from tests.charts.chart import NAMESPACE, ROOT, install
from tests.charts.recorder import verbs
from tests.charts.test_rights import kubeconfig
from tests.cluster.runtime.gateway_api import ROUTE, gateway_api
from tests.cluster.runtime.harness import CHILDREN, SPEC, Api, Operator, eventually, kubelets

CRASHED = {"terminated": {"exitCode": 1, "reason": "Error", "containerID": "x://1"}}
BODIES: dict[str, dict[str, Any]] = {
    "ServiceAccount": {},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "RoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"}},
    "Service": {"spec": {"ports": [{"port": 1}]}},
    "Deployment": {
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "x", "image": "x"}]}},
        }
    },
    "HTTPRoute": {"spec": {"parentRefs": [{"name": "g"}]}},
    "PodDisruptionBudget": {"spec": {"selector": {"matchLabels": {"a": "b"}}}},
}
"""The least that the API server takes of each kind of child."""

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("method", "url", "status", "used"),
    [
        ("GET", "https://h/apis/pdx.dev/v1alpha1", 200, []),
        ("GET", "https://h/apis/pdx.dev/v1alpha1/pddeployments?limit=1", 200, ["list pddeployments.pdx.dev"]),
        ("GET", "https://h/api/v1/namespaces/n/pods?watch=true", 200, ["watch pods"]),
        ("GET", "https://h/api/v1/namespaces/n/pods/p/log", 400, ["get pods/log"]),
        ("PATCH", "https://h/api/v1/namespaces/n/services/s", 201, ["patch services", "create services"]),
        ("DELETE", "https://h/apis/apps/v1/namespaces/n/deployments/d", 200, ["delete deployments.apps"]),
    ],
)
def test_a_request_needs_these_verbs(method: str, url: str, status: int, used: list[str]) -> None:
    assert list(verbs(method, url, status)) == used


@pytest.fixture
def recorded(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Where an operator that works with the chart's rights writes each verb that it uses."""
    with gateway_api(cluster):
        yield from _recorded(cluster, tmp_path)


def _recorded(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    install(cluster)
    cluster.kubectl("delete", "leases", "--all", "--namespace", NAMESPACE)  # of another test's operator
    path, log = tmp_path / "verbs", tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.charts.recorder",
                str(path),
                "--health-port=0",
                f"--own-namespace={NAMESPACE}",
            ],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            env={**os.environ, "KUBECONFIG": str(kubeconfig(cluster, tmp_path)), "PYTHONPATH": str(ROOT)},
        )
    operator = Operator(process, log, 0)
    try:
        operator.wait_until_working()
        yield path
    finally:
        operator.end()
    assert "forbidden" not in operator.text().lower()


def test_the_operator_uses_every_verb_that_it_may_use_and_no_other(
    cluster: Cluster, namespace: str, recorded: Path
) -> None:
    api = Api(cluster)

    def used() -> set[str]:
        return set(recorded.read_text().split("\n")[:-1])

    _make_each_kind(api, namespace, gateway_name("taken"), {})
    _make_each_kind(api, namespace, f"{gateway_name('taken')}-clusterrole", {})
    spec = {**SPEC, "gateway": {"httpRoute": ROUTE}}
    api.deploy(namespace, "taken", spec)
    uid = api.deploy(namespace, spec=spec)["metadata"]["uid"]
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "m", "uid": uid}
    eventually(lambda: len(api.children(namespace)) == CHILDREN, what="created")
    _crash(api, eventually(lambda: api.items(POD, namespace), what="pods")[0])
    eventually(lambda: "get pods/log" in used(), what="its log read")
    with kubelets(api, namespace):
        eventually(lambda: api.is_ready(namespace), what="ready")
        labels = {LABEL_DEPLOYMENT: "m"}
        _make_each_kind(api, namespace, "stray", {"labels": labels, "ownerReferences": [{**owner, "controller": True}]})
        api.change(namespace, {"engine": {"maxModelLen": 4096}, "rollout": {"maxSurge": "100%"}})
        eventually(lambda: _condition_reason(api, namespace) == "Complete", what="rolled out")
        api.delete(PDDEPLOYMENT, namespace, "m")

    # The test's pods have no address, so no gateway's owner is read.
    expected = (_spelt(ACCESS) | _spelt(OWN_ACCESS)) - {"get replicasets.apps"}
    with suppress(AssertionError):  # the Lease is renewed every few seconds
        eventually(lambda: expected <= used(), what="every verb used")
    assert used() == expected


def _spelt(access: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {f"{verb} {resource}" for resource, allowed in access.items() for verb in allowed}


def _condition_reason(api: Api, namespace: str) -> object:
    condition = api.condition(namespace, ConditionType.PROGRESSING)
    return condition["reason"] if condition.get("observedGeneration") == 2 else None


def _make_each_kind(api: Api, namespace: str, name: str, metadata: dict[str, Any]) -> None:
    for kind in (*CHILD_KINDS, *OPTIONAL_KINDS):
        body = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name, **metadata}}
        api.create(kind, namespace, {**body, **BODIES[kind.name]})


def _crash(api: Api, pod: dict[str, Any]) -> None:
    metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
    status = {"name": container, "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": CRASHED}
    body = {"status": {"containerStatuses": [status]}}
    api.patch(POD, metadata["namespace"], metadata["name"], body, "status")
