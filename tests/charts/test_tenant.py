"""A tenant with `edit` in one namespace does its worst: nothing elsewhere changes, and the operator stays small."""

import json
import os
import random
import time
import urllib.error
from collections import Counter
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.operator import FOLDER
from benchmarks.operator.__main__ import memory
from benchmarks.soak.results import print_line, record
from pdx_api.kube.kinds import CHILD_KINDS, KIND_OF, PDDEPLOYMENT, POD, Kind
from pdx_cluster.app.cluster import Cluster
from tests.charts.chart import NAMESPACE, install
from tests.charts.hostile import HostileGateway, attempts
from tests.charts.test_rights import kubeconfig
from tests.cluster.runtime.audit import Audit
from tests.cluster.runtime.harness import Api, Operator, at_rest, eventually, kubelets
from tests.cluster.runtime.test_operator_verification import Gateway

AT_ONCE = 16
MOST = 1.2
"""Memory of the operator, of that with as many ordinary objects."""
OUTSIDE = (
    *CHILD_KINDS,
    PDDEPLOYMENT,
    POD,
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "Secret", "secrets"),
)
CLUSTER_WIDE = ("clusterroles", "clusterrolebindings")

pytestmark = pytest.mark.timeout(600)


def test_a_tenant_changes_nothing_elsewhere(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    print_line("tenant", _campaign(cluster, namespace, tmp_path, count=6, seconds=100, seed=1))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_tenant_with_500_objects_changes_nothing_elsewhere(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    record("tenant", _campaign(cluster, namespace, tmp_path, count=500, seconds=1800, seed=seed), FOLDER)


def _campaign(
    cluster: Cluster, namespace: str, folder: Path, *, count: int, seconds: float, seed: int
) -> dict[str, Any]:
    install(cluster)
    admin, numbers = Api(cluster), random.Random(seed)
    calm, victim = f"{namespace}-c"[-60:].strip("-"), f"{namespace}-v"[-60:].strip("-")
    for name in (calm, victim):
        cluster.kubectl("create", "namespace", name)
        cluster.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={name}", "--timeout=60s")
    try:
        ordinary = _ordinary(cluster, admin, folder, calm, count, seconds)
        cluster.kubectl("delete", "namespace", calm, "--wait", timeout_seconds=max(seconds, 100))
        audit = Audit(cluster.audit_log)
        operator, gateway = _start(cluster, folder), Gateway()
        try:
            with kubelets(admin, victim, address=gateway.address):
                uid = admin.deploy(victim, "bystander")["metadata"]["uid"]
                eventually(lambda: _rests(admin, victim, "bystander"), what="the bystander at rest")
                eventually(lambda: _is_verified(admin, victim, "bystander"), what="the bystander verified")
                result = _attack(cluster, admin, namespace, (victim, uid), numbers, count, seconds)
                hostile = memory(operator)[1]
                # It still serves others.
                admin.change(victim, {"decode": {"replicas": 2}}, "bystander")
                eventually(lambda: _rests(admin, victim, "bystander"), what="the bystander scaled")
            assert operator.get("/healthz")[0] == 200
        finally:
            operator.end()
            gateway.shutdown()
            gateway.server_close()
        assert "Traceback" not in operator.text()
        places = {write.namespace for write in audit.writes() if write.is_of_operator and write.resource != "leases"}
        assert places <= {namespace, victim}
        assert hostile <= MOST * ordinary, (hostile, ordinary)
    finally:
        cluster.kubectl("delete", "namespace", calm, victim, "--wait=false", "--ignore-not-found")
    return {"objects": count, "seed": seed, **result, "memory": {"ordinary": ordinary, "hostile": hostile}}


def _start(cluster: Cluster, folder: Path) -> Operator:
    """An operator for all namespaces, with the chart's rights."""
    config = kubeconfig(cluster, folder)
    return Operator.start(config, folder, f"--own-namespace={NAMESPACE}").wait_until_working()


def _ordinary(cluster: Cluster, admin: Api, folder: Path, namespace: str, count: int, seconds: float) -> float:
    """The operator's memory at most with so many ordinary objects, in MiB."""
    operator = _start(cluster, folder)
    gateway = Gateway()
    try:
        with kubelets(admin, namespace, address=gateway.address), ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda number: admin.deploy(namespace, f"m{number}"), range(count)))
            try:
                eventually(lambda: not _unready(admin, namespace), within=seconds, what="ordinary objects ready")
            except AssertionError:
                pytest.fail(f"never ready: {_unready(admin, namespace)}")
        return memory(operator)[1]
    finally:
        operator.end()
        gateway.shutdown()
        gateway.server_close()


def _attack(
    cluster: Cluster,
    admin: Api,
    namespace: str,
    victim: tuple[str, str],
    numbers: random.Random,
    count: int,
    seconds: float,
) -> dict[str, Any]:
    """Everything at once, until the operator has seen it all. Returns what the API server has taken and refused."""
    tenant = tenant_of(cluster, admin, namespace)
    other, uid = victim
    outside = _active(admin) - {namespace}
    before = at_rest(lambda: _outside(admin, outside))
    gateway, tries = HostileGateway(numbers), attempts("bystander", uid, other)
    answers: Counter[str] = Counter()

    def create(number: int) -> None:
        kind, body = tries[number % len(tries)](number // len(tries))
        try:
            tenant.create(PDDEPLOYMENT if kind == PDDEPLOYMENT.name else KIND_OF[kind], namespace, body)
        except urllib.error.HTTPError as error:
            answers[f"refused {error.code}"] += 1
        else:
            answers["taken"] += 1

    with closing(gateway.socket), kubelets(admin, namespace, address=gateway.address):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(create, range(count)))
        eventually(lambda: _all_seen(admin, namespace), within=seconds, what="a status of every object", every=5.0)
        eventually(lambda: gateway.polls >= 5, what="polls of the hostile gateways")
        time.sleep(2)
        gateway.shutdown()
    assert gateway.followed == 0
    after = _outside(admin, outside)
    changes = [key for key in before | after if before.get(key) != after.get(key)]
    assert not changes, "\n".join(f"{key}\n{before.get(key)}\n{after.get(key)}" for key in changes)
    return {"answers": answers, "polls": gateway.polls}


def tenant_of(cluster: Cluster, admin: Api, namespace: str) -> Api:
    """A ServiceAccount with `edit`. The cluster's roles contain the chart's a moment after its installation."""
    cluster.kubectl("create", "serviceaccount", "tenant", f"--namespace={namespace}")
    account = f"--serviceaccount={namespace}:tenant"
    cluster.kubectl("create", "rolebinding", "tenant", "--clusterrole=edit", account, f"--namespace={namespace}")
    tenant = Api(cluster, cluster.kubectl("create", "token", "tenant", f"--namespace={namespace}").strip())

    def may() -> bool:
        try:
            return tenant.items(PDDEPLOYMENT, namespace) == []
        except urllib.error.HTTPError:
            return False

    eventually(may, what="rights of the tenant")
    for place in (NAMESPACE, "team-a"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            tenant.items(PDDEPLOYMENT, place)
    return tenant


def _active(admin: Api) -> set[str]:
    """The namespaces that are not being deleted after another test."""
    bodies = admin.request("GET", "/api/v1/namespaces")["items"]
    return {body["metadata"]["name"] for body in bodies if body["status"]["phase"] == "Active"}


def _outside(admin: Api, namespaces: Set[str]) -> dict[str, str]:
    """Every object in these namespaces, and the cluster's roles."""
    roles = "/apis/rbac.authorization.k8s.io/v1"
    bodies = {kind.plural: admin.items(kind, None) for kind in OUTSIDE}
    bodies |= {plural: admin.request("GET", f"{roles}/{plural}")["items"] for plural in CLUSTER_WIDE}
    return {
        f"{plural} {body['metadata'].get('namespace')}/{body['metadata']['name']}": json.dumps(_lasting(plural, body))
        for plural, found in bodies.items()
        for body in found
        if body["metadata"].get("namespace") in {None, *namespaces}
    }


def _lasting(plural: str, body: dict[str, Any]) -> dict[str, Any]:
    """What only its writers change.

    No node runs the operator's pod here: after ten minutes, Kubernetes writes to the status of the Deployment that it
    makes no progress.
    """
    lasting = {**body, "metadata": {**body["metadata"], "managedFields": None}}
    if (plural, body["metadata"].get("namespace")) == ("deployments", NAMESPACE):
        lasting["status"] = lasting["metadata"]["resourceVersion"] = None
    return lasting


def _all_seen(admin: Api, namespace: str) -> bool:
    """Whether each object has a status, besides those that name another operator.

    A list of hundreds of MiB may exceed the API server's own deadline.
    """
    try:
        bodies = admin.items(PDDEPLOYMENT, namespace)
    except urllib.error.HTTPError as error:
        if error.code != 504:
            raise
        return False
    return all(
        body.get("status", {}).get("conditions") or "pdx.dev/operator" in body["metadata"].get("annotations", {})
        for body in bodies
    )


def _unready(admin: Api, namespace: str) -> dict[str, Any]:
    """The status of each object that is not ready."""
    found = {body["metadata"]["name"]: body.get("status", {}) for body in admin.items(PDDEPLOYMENT, namespace)}
    return {name: status for name, status in found.items() if not _is_ready(status)}


def _is_ready(status: dict[str, Any]) -> bool:
    conditions = status.get("conditions") or ()
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _rests(admin: Api, namespace: str, name: str) -> bool:
    return admin.is_ready(namespace, name) and admin.condition(namespace, "Progressing", name)["status"] == "False"


def _is_verified(admin: Api, namespace: str, name: str) -> bool:
    return bool(admin.condition(namespace, "KVTransferVerified", name).get("status") == "True")
