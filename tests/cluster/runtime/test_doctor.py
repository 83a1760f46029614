"""`pdx doctor` against a real API server: set-ups as users have them, each broken in one way."""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pdx_api.kube.kinds import DEPLOYMENT, KIND_OF, POD, ROLE, Kind
from pdx_api.names import ENGINE_CONTAINER, GATEWAY_ROLE, LABEL_ROLE
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, examine
from pdx_cli.commands.doctor import inspect
from pdx_cli.inputs.target import InCluster
from pdx_cli.sources.observation import Observation
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.harness import SPEC, Api, Body, Operator, eventually, kubelets
from tests.documents import BLOCKS

pytestmark = pytest.mark.timeout(300)

QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")
ALONE: Body = {"podTemplate": {"spec": {"schedulerName": "nobody"}}}
UNPLACED: Body = {**SPEC, "prefill": ALONE, "decode": ALONE}
"""Engines that no scheduler handles: a scheduler would write into their status too."""
GROUP = "rbac.authorization.k8s.io"

Doctor = Callable[[], dict[str, Finding]]


@pytest.fixture
def doctor(control_plane: Cluster, namespace: str) -> Doctor:
    """What is found of the object m, by cause."""
    return lambda: {finding.cause: finding for finding in examine(_observe(control_plane, namespace), CHECKS)}


def _observe(cluster: Cluster, namespace: str, kubeconfig: Path | None = None) -> Observation:
    return asyncio.run(inspect(InCluster("m", namespace, str(kubeconfig or cluster.kubeconfig), None)))


def named(doctor: Doctor, cause: str) -> Finding:
    """The finding of that cause, once what it speaks of has come about."""
    found: Finding = eventually(lambda: doctor().get(cause), what=cause)
    return found


def pods(api: Api, namespace: str, role: str) -> list[Body]:
    """The pods of a role."""
    return api.items(POD, namespace, labelSelector=f"{LABEL_ROLE}={role}")


def names(api: Api, namespace: str, role: str) -> set[str]:
    """What those are called."""
    return {pod["metadata"]["name"] for pod in pods(api, namespace, role)}


def show(api: Api, namespace: str, role: str, **state: Any) -> None:
    """Write the state of the only pod's container, as a kubelet would."""
    pod = eventually(lambda: pods(api, namespace, role), what=f"a {role} pod")[0]
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))
    container = {"name": ENGINE_CONTAINER, "image": "vllm/none:1", "imageID": "", "ready": False, "restartCount": 2}
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
        {"type": "Ready", "status": "False", "lastTransitionTime": since},
    ]
    status = {"phase": "Pending", "conditions": conditions, "containerStatuses": [{**container, **state}]}
    api.patch(POD, namespace, pod["metadata"]["name"], {"status": status}, "status")


def run(cluster: Cluster, namespace: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    """`pdx doctor` as a user runs it."""
    command = [sys.executable, "-m", "pdx_cli", "doctor", "-n", namespace, *argv]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


def test_a_healthy_object_gives_no_finding(
    api: Api, operator: Operator, namespace: str, control_plane: Cluster
) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    role = {"apiVersion": f"{GROUP}/v1", "kind": "Role", "metadata": {"name": GATEWAY_ROLE}, "rules": rules}
    api.create(ROLE, namespace, role)  # the chart's
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(lambda: api.is_ready(namespace), what="ready")
        eventually(lambda: api.condition(namespace, "Progressing").get("status") == "False", what="settled")
        shown = run(control_plane, namespace)
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stdout
    assert shown.stdout.startswith(f"m (namespace {namespace}): nothing is wrong.")


def test_nodes_without_room(
    api: Api, operator: Operator, namespace: str, control_plane: Cluster, doctor: Doctor
) -> None:
    api.deploy(namespace)
    finding = named(doctor, "Unschedulable")
    assert "no node may take it" in finding.sentence
    events = eventually(lambda: _observe(control_plane, namespace).events, what="Events")
    assert ("Pod", "FailedScheduling") in {(event.kind, event.reason) for event in events}
    assert all(event.note for event in events)


def test_an_image_that_cannot_be_pulled(api: Api, operator: Operator, namespace: str, doctor: Doctor) -> None:
    api.deploy(namespace, spec=UNPLACED)
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "vllm/none:1": not found'}
    show(api, namespace, "decode", state={"waiting": waiting})
    assert "vllm/none:1 cannot be pulled" in named(doctor, "ImagePullFailed").sentence


@pytest.mark.parametrize(
    ("ending", "cause", "text"),
    [
        pytest.param(
            {"exitCode": 1, "reason": "Error", "message": "OSError: m is not a valid git identifier"},
            "ModelRevisionNotFound",
            "correct spec.model.revision",
            id="model",
        ),
        pytest.param({"exitCode": 137, "reason": "OOMKilled"}, "OutOfMemory", "limits.memory", id="memory"),
    ],
)
def test_an_engine_that_ends(
    ending: Body, cause: str, text: str, api: Api, operator: Operator, namespace: str, doctor: Doctor
) -> None:
    api.deploy(namespace, spec=UNPLACED)
    show(api, namespace, "decode", state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": ending})
    assert text in named(doctor, cause).sentence


def test_a_quota(api: Api, operator: Operator, namespace: str, doctor: Doctor) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    api.create(QUOTA, namespace, quota)
    eventually(lambda: (api.get(QUOTA, namespace, "none") or {}).get("status", {}).get("hard"), what="a quota in force")
    api.deploy(namespace)
    assert "the namespace's quota refuses its pod" in named(doctor, "QuotaExceeded").sentence


def test_a_missing_secret(api: Api, operator: Operator, namespace: str, doctor: Doctor) -> None:
    api.deploy(namespace, spec={**SPEC, "gateway": {"auth": {"secretRef": {"name": "clients"}}}})
    finding = named(doctor, "SecretNotFound")
    assert "Secret clients" in finding.sentence
    assert f"-n {namespace}" in finding.remedy


def test_no_operator(api: Api, namespace: str, control_plane: Cluster, doctor: Doctor) -> None:
    api.deploy(namespace)
    assert "the spec changed seconds ago" in doctor()["OperatorBehind"].sentence
    observation = _observe(control_plane, namespace)
    later = dataclasses.replace(observation, now=observation.now + timedelta(minutes=1))
    (finding,) = examine(later, CHECKS)
    assert finding.cause == "OperatorNotRunning"
    assert "No operator has processed the object yet: no operator is installed" in finding.sentence


def test_an_operator_that_has_ended(api: Api, operator: Operator, namespace: str, control_plane: Cluster) -> None:
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(lambda: api.is_ready(namespace), what="ready")
        operator.kill()
        api.change(namespace, {"gateway": {"replicas": 2}})
    observation = _observe(control_plane, namespace)
    later = dataclasses.replace(observation, now=observation.now + timedelta(minutes=1))
    finding = examine(later, CHECKS)[0]
    assert (finding.cause, "it has seen generation 1, the newest is 2" in finding.sentence) == (
        "OperatorNotRunning",
        True,
    )


def test_a_gateway_without_its_rights(api: Api, operator: Operator, namespace: str, doctor: Doctor) -> None:
    api.deploy(namespace)
    eventually(lambda: api.get(KIND_OF["RoleBinding"], namespace, "m-gateway-role"), what="a RoleBinding")
    eventually(lambda: api.status(namespace), what="a status")
    operator.kill()
    api.delete(KIND_OF["RoleBinding"], namespace, "m-gateway-role")
    finding = named(doctor, "GatewayRights")
    assert "RoleBinding m-gateway is missing" in finding.sentence
    assert f"--as=system:serviceaccount:{namespace}:m-gateway" in finding.remedy


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_with_other_flags(role: str, api: Api, operator: Operator, namespace: str, doctor: Doctor) -> None:
    """P without its connector, D with another model string: the operator is away, and somebody edits a Deployment."""
    api.deploy(namespace, spec=UNPLACED)
    for each in ("prefill", "decode"):
        eventually(partial(pods, api, namespace, each), what="pods")
    operator.kill()
    deployment = api.items(DEPLOYMENT, namespace, labelSelector=f"{LABEL_ROLE}={role}")[0]
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    place = args.index("--kv-transfer-config")
    args = args[:place] + args[place + 2 :] if role == "prefill" else ["serve", "/models/m", *args[2:]]
    change = [
        {"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args},
        {"op": "replace", "path": "/spec/strategy", "value": {"type": "Recreate"}},
    ]
    path = DEPLOYMENT.path(namespace, deployment["metadata"]["name"])
    old = names(api, namespace, role)
    api.request("PATCH", path, change, "application/json-patch+json")  # type: ignore[arg-type]
    eventually(lambda: (now := names(api, namespace, role)) and not now & old, what="a new pod and no old one")
    for each in ("prefill", "decode"):
        running = {"running": {"startedAt": "2030-01-01T00:00:00Z"}}
        show(api, namespace, each, state=running, ready=True, started=True)
    if role == "prefill":
        assert "prefill engine m-prefill-" in named(doctor, "ConnectorOff").sentence
    else:
        assert "'/models/m'" in named(doctor, "ModelsDiffer").sentence
        assert "m instead of /models/m" not in named(doctor, "ArgumentsDiffer").sentence


def test_objects_and_rights_that_are_not_there(
    api: Api, namespace: str, control_plane: Cluster, tmp_path: Path
) -> None:
    shown = run(control_plane, namespace, "nope")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"pdx: Namespace {namespace} has no PDDeployment nope (it has: none)")
    assert "has none" in run(control_plane, namespace).stderr
    api.deploy(namespace)
    nobody = _user(control_plane, namespace, tmp_path, [])
    shown = run(control_plane, namespace, "m", "--kubeconfig", str(nobody))
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert "forbidden" in shown.stderr
    reader = [{"apiGroups": ["pdx.dev"], "resources": ["pddeployments"], "verbs": ["get", "list"]}]
    observation = _observe(control_plane, namespace, _user(control_plane, namespace, tmp_path, reader))
    assert {"pods (not allowed)", "Events (not allowed)", "Deployments (not allowed)"} <= set(observation.unseen)
    control_plane.kubectl(
        *(
            "create",
            "rolebinding",
            "edits",
            "--clusterrole=edit",
            f"--serviceaccount={namespace}:user-1",
            "-n",
            namespace,
        )
    )
    assert _observe(control_plane, namespace, tmp_path / "user-1.kubeconfig").unseen == (), "with the role edit"
    documented = next(body["rules"] for _, body in BLOCKS if body["metadata"]["name"] == "pdx-doctor")
    observation = _observe(control_plane, namespace, _user(control_plane, namespace, tmp_path, documented))
    assert observation.unseen == (), "the rights in docs/doctor.md are enough"


def test_kubectl_runs_it_as_its_plugin(api: Api, namespace: str, control_plane: Cluster, tmp_path: Path) -> None:
    program = tmp_path / "kubectl-pdx"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom pdx_cli.entry import plugin\nsys.exit(plugin())\n")
    program.chmod(0o755)
    env = {
        **os.environ,
        "KUBECONFIG": str(control_plane.kubeconfig),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for command in ("doctor", "top"):
        argv = [str(control_plane.plane.programs["kubectl"]), "pdx", command, "nope", "-n", namespace]
        shown = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60)
        assert "has no PDDeployment nope" in shown.stderr, shown
        assert shown.returncode == 2


def _user(cluster: Cluster, namespace: str, folder: Path, rules: list[Body]) -> Path:
    """The kubeconfig of an account with these rights in the namespace."""
    name = f"user-{len(rules)}"
    objects: list[Body] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": f"{GROUP}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]
    cluster.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", name, "-n", namespace).strip()}
    path = folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    return path
