"""What may be done after an install: by the operator what it needs and no more, by users what their roles say."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from pdx_operator.app.permissions import ACCESS
from tests.charts.chart import NAMESPACE, install
from tests.cluster.runtime.harness import SPEC, Api, Operator, kubelets

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:pdx-operator"
FORBIDDEN = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("get", "pods"),
    ("delete", "pods"),
    ("create", "pods"),
    ("patch", "pddeployments.pdx.dev"),
    ("delete", "pddeployments.pdx.dev"),
    ("create", "clusterroles.rbac.authorization.k8s.io"),
    ("bind", "roles.rbac.authorization.k8s.io"),
    ("bind", "clusterroles.rbac.authorization.k8s.io"),
    ("create", "roles.rbac.authorization.k8s.io"),
    ("patch", "roles.rbac.authorization.k8s.io"),
    ("watch", "pods"),
    ("update", "leases.coordination.k8s.io"),
    ("escalate", "roles.rbac.authorization.k8s.io"),
    ("impersonate", "serviceaccounts"),
    ("create", "serviceaccounts/token"),
    ("list", "nodes"),
    ("list", "namespaces"),
    ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
]

pytestmark = pytest.mark.timeout(300)


def _allowed(cluster: Cluster, permissions: list[tuple[str, str]], namespace: str) -> dict[tuple[str, str], bool]:
    """What the operator's ServiceAccount may do there, by the API server's authorizer."""
    reviews = [_review(verb, resource, namespace) for verb, resource in permissions]
    output = cluster.kubectl("create", "--filename=-", "--output=json", stdin=yaml.safe_dump_all(reviews))
    decoder, answers = json.JSONDecoder(), []
    while output.strip():
        answer, end = decoder.raw_decode(output.lstrip())
        answers.append(answer["status"]["allowed"])
        output = output.lstrip()[end:]
    return dict(zip(permissions, answers, strict=True))


def _review(verb: str, spelt: str, namespace: str) -> dict[str, Any]:
    whole, _, subresource = spelt.partition("/")
    resource, _, group = whole.partition(".")
    what = {
        "verb": verb,
        "resource": resource,
        "group": group,
        "subresource": subresource,
        "namespace": namespace,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "groups": ["system:serviceaccounts"], "resourceAttributes": what},
    }


def test_the_operator_may_do_what_it_uses_and_nothing_else(cluster: Cluster) -> None:
    install(cluster)
    used = [(verb, resource) for resource, verbs in ACCESS.items() for verb in verbs]

    assert _allowed(cluster, used, "default") == dict.fromkeys(used, True)
    assert _allowed(cluster, FORBIDDEN, "default") == dict.fromkeys(FORBIDDEN, False)


def test_a_namespaced_operator_may_work_in_its_namespaces_alone(cluster: Cluster, namespace: str) -> None:
    install(cluster, "--set", f"watchNamespaces={{{namespace}}}")
    used = [(verb, resource) for resource, verbs in ACCESS.items() for verb in verbs]

    assert _allowed(cluster, used, namespace) == dict.fromkeys(used, True)
    assert _allowed(cluster, used, "default") == dict.fromkeys(used, False)
    assert _allowed(cluster, used, "") == dict.fromkeys(used, False)


def test_the_operator_may_give_gateways_pods_to_read_and_nothing_more(cluster: Cluster, namespace: str) -> None:
    install(cluster)
    identity = ("--namespace", namespace, "--as", ACCOUNT)
    bind = ("create", "rolebinding", *identity, f"--serviceaccount={namespace}:m-gateway")

    cluster.kubectl(*bind, "--clusterrole=pdx-gateway", "m-gateway-clusterrole")
    with pytest.raises(ClusterError, match="attempting to grant RBAC permissions not currently held"):
        cluster.kubectl(*bind, "--clusterrole=view", "nosy")
    with pytest.raises(ClusterError, match="cannot create resource"):
        cluster.kubectl("create", "role", *identity, "--verb=list", "--resource=pods", "own")


@pytest.mark.parametrize(("role", "may"), [("view", (True, False)), ("edit", (True, True)), ("admin", (True, True))])
def test_the_clusters_user_roles_hold_pddeployments(
    cluster: Cluster, namespace: str, role: str, may: tuple[bool, bool]
) -> None:
    install(cluster)
    cluster.kubectl("create", "rolebinding", "alice", "--clusterrole", role, "--user=alice", "--namespace", namespace)

    def can(verb: str) -> bool:
        try:
            return cluster.kubectl("auth", "can-i", verb, "pdd", "--as=alice", "--namespace", namespace) == "yes\n"
        except ClusterError:
            return False

    # The controller manager adds the chart's roles to the cluster's when it sees them.
    deadline = time.monotonic() + 60
    while not can("create" if may[1] else "list") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (can("list"), can("create")) == may


@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster-wide", "namespaced"])
def test_an_installed_operator_brings_an_object_up_and_is_never_forbidden_anything(
    cluster: Cluster, namespace: str, tmp_path: Path, everywhere: bool
) -> None:
    install(cluster, *([] if everywhere else ["--set", f"watchNamespaces={{{namespace}}}"]))
    deployment = json.loads(cluster.kubectl("get", "deployment/pdx-operator", f"-n={NAMESPACE}", "--output=json"))
    flags = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    own_port = [flag for flag in flags if not flag.startswith("--health-port")]
    operator = Operator.start(kubeconfig(cluster, tmp_path), tmp_path, *own_port)
    body = {"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": "tiny"}, "spec": SPEC}
    objects = ("--namespace", namespace, "pddeployment/tiny")
    try:
        operator.wait_until_working()
        with kubelets(Api(cluster), namespace):
            cluster.kubectl("apply", "--namespace", namespace, "--filename=-", stdin=json.dumps(body))
            cluster.kubectl("wait", "--for=condition=Ready", *objects, "--timeout=60s")
            cluster.kubectl(
                "patch", *objects, "--type=merge", '--patch={"spec": {"kvTransfer": {"order": "DecodeFirst"}}}'
            )
            cluster.kubectl("delete", *objects)
    finally:
        operator.end()

    assert "forbidden" not in operator.text().lower()


def kubeconfig(cluster: Cluster, folder: Path, account: str = "pdx-operator", namespace: str = NAMESPACE) -> Path:
    """What the operator's pod would have: the API server's address and its ServiceAccount's token."""
    token = cluster.kubectl("create", "token", account, "--namespace", namespace).strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--output=json"))
    config["users"][0]["user"] = {"token": token}
    path = folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(config))
    return path
