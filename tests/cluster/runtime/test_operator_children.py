"""Children come, stay as they should be, and go."""

import json
import re
import time
import urllib.error
from contextlib import suppress
from pathlib import Path

import pytest

from pdx_api.kube.kinds import DEPLOYMENT, KIND_OF, PDDEPLOYMENT, POD
from pdx_api.names import API_VERSION, FIELD_MANAGER, KIND, LABEL_DEPLOYMENT
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.conftest import StartOperator
from tests.cluster.runtime.harness import (
    CHILDREN,
    GRACE,
    SPEC,
    Api,
    Operator,
    Sampled,
    at_rest,
    essence,
    eventually,
    kubelets,
)

pytestmark = pytest.mark.timeout(300)

SERVICE = KIND_OF["Service"]
ACCOUNT = KIND_OF["ServiceAccount"]
BINDING = KIND_OF["RoleBinding"]
SOON = 20.0
"""Times that of a Deployment; 7 were measured. Seven objects are written, after a snapshot of all children is read."""


def test_an_object_becomes_children_that_it_owns(api: Api, operator: Operator, namespace: str) -> None:
    body = api.deploy(namespace)
    children = _all_children(api, namespace)
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "m", "uid": body["metadata"]["uid"], "controller": True}
    for key, child in children.items():
        assert [owner] == child["metadata"]["ownerReferences"], key
        managers = {(entry["manager"], entry["operation"]) for entry in child["metadata"]["managedFields"]}
        assert (FIELD_MANAGER, "Apply") in managers, key
        assert (FIELD_MANAGER, "Update") not in managers, key
    assert "finalizers" not in body["metadata"]
    live = api.get(PDDEPLOYMENT, namespace, "m")
    assert live is not None
    assert not live["metadata"].get("annotations")


def test_children_exist_soon_after_apply(api: Api, operator: Operator, namespace: str) -> None:
    """Beside Kubernetes' own controller of Deployments: measured in turn, because the machine may be busy."""
    pairs = [
        (_time_to_children(api, namespace, number), _time_to_observed(api, namespace, number)) for number in range(7)
    ]
    ours, theirs = (sorted(times)[len(times) // 2] for times in zip(*pairs, strict=True))
    assert ours < SOON * theirs, pairs


def _time_to_children(api: Api, namespace: str, number: int) -> float:
    """Seconds until the Deployments and the objects beside them exist, which are made last."""
    name = f"m{number}"
    began = time.monotonic()
    api.deploy(namespace, name)
    while len(_labelled(api, namespace, name)) < 6:
        time.sleep(0.01)
    taken = time.monotonic() - began
    time.sleep(0.7)  # Kubernetes is still busy with what came of it
    return taken


def _time_to_observed(api: Api, namespace: str, number: int) -> float:
    """Seconds until Kubernetes has observed a new Deployment."""
    name = f"peer{number}"
    labels = {"app": name}
    containers = [{"name": "none", "image": "none.invalid/none:1"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    began = time.monotonic()
    api.create(DEPLOYMENT, namespace, body)
    while "observedGeneration" not in (api.get(DEPLOYMENT, namespace, name) or {}).get("status", {}):
        time.sleep(0.01)
    return time.monotonic() - began


def test_a_settled_object_costs_nothing(api: Api, operator: Operator, namespace: str, control_plane: Cluster) -> None:
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(lambda: api.is_ready(namespace), what="ready")
        eventually(lambda: not _progresses(api, namespace), what="settled")
        before, versions = at_rest(lambda: ((_applied(control_plane), operator.writes()), _versions(api, namespace)))
        time.sleep(6)
        assert (_applied(control_plane), operator.writes()) == before
        assert _versions(api, namespace) == versions


def test_ready_takes_few_writes(api: Api, operator: Operator, namespace: str, control_plane: Cluster) -> None:
    applied, before = _applied(control_plane), operator.writes()
    with kubelets(api, namespace):
        api.deploy(namespace, spec={"model": {"name": "m"}, "prefill": {"replicas": 3}, "decode": {"replicas": 3}})
        eventually(lambda: api.is_ready(namespace), what="ready")
        eventually(lambda: not _progresses(api, namespace), what="settled")
        writes = at_rest(operator.writes) - before
    assert CHILDREN <= writes <= 25
    # It counts what the API server counts.
    assert _applied(control_plane) - applied + len(api.events(namespace)) == writes


def test_an_edited_child_is_put_back_and_foreign_fields_stay(api: Api, operator: Operator, namespace: str) -> None:
    api.deploy(namespace)
    before = essence(_all_children(api, namespace))
    engine = next(name for kind, name in before if kind == "Deployment" and "decode" in name)
    api.patch(DEPLOYMENT, namespace, engine, {"spec": {"replicas": 7}})
    api.patch(SERVICE, namespace, "m-gateway", {"spec": {"selector": {"app": "other"}}})
    api.patch(BINDING, namespace, "m-gateway-role", {"subjects": []})
    eventually(lambda: essence(api.children(namespace)) == before, what="as before")

    notes = {"metadata": {"annotations": {"example.com/note": "mine"}, "labels": {"team": "a"}}}
    api.patch(SERVICE, namespace, "m-gateway", notes)
    time.sleep(1.5)
    kept = api.get(SERVICE, namespace, "m-gateway")
    assert kept is not None
    assert kept["metadata"]["labels"]["team"] == "a"
    assert kept["metadata"]["annotations"]["example.com/note"] == "mine"


def test_replicas_go_over_to_an_autoscaler_and_come_back(api: Api, operator: Operator, namespace: str) -> None:
    def replicas() -> int:
        body = api.get(DEPLOYMENT, namespace, "m-gateway") or {}
        # Without pods to wait for, the number is what matters.
        return int(body["spec"]["replicas"]) if body else -1

    def manifests() -> list[str]:
        body = api.get(DEPLOYMENT, namespace, "m-gateway") or {"metadata": {"managedFields": []}}
        return [str(e["fieldsV1"]) for e in body["metadata"]["managedFields"] if e["manager"] == FIELD_MANAGER]

    api.deploy(namespace, spec={**SPEC, "gateway": {"replicas": 3}})
    eventually(lambda: replicas() == 3, what="three")
    for scaled in (5, 2):
        seen = Sampled(replicas)
        with seen:
            api.change(namespace, {"gateway": {"replicas": None, "workers": scaled}})
            eventually(lambda: not any("f:replicas" in fields for fields in manifests()), what="handed over")
        assert seen.values == {3}
        api.patch(DEPLOYMENT, namespace, "m-gateway", {"spec": {"replicas": scaled}}, "scale")
        time.sleep(1)
        assert replicas() == scaled
        api.change(namespace, {"gateway": {"replicas": 3}})
        eventually(lambda: replicas() == 3, what="three again")


def test_a_label_that_is_taken_away_comes_back(api: Api, operator: Operator, namespace: str) -> None:
    api.deploy(namespace)
    before = essence(_all_children(api, namespace))
    api.patch(SERVICE, namespace, "m-gateway", {"metadata": {"labels": {LABEL_DEPLOYMENT: None}}})
    eventually(lambda: essence(api.children(namespace)) == before, what="as before")
    api.patch(ACCOUNT, namespace, "m-gateway", {"metadata": {"labels": {LABEL_DEPLOYMENT: "other"}}})
    eventually(lambda: essence(api.children(namespace)) == before, what="as before")


def test_deleted_children_come_back(api: Api, operator: Operator, namespace: str) -> None:
    api.deploy(namespace)
    before = essence(_all_children(api, namespace))
    for kind, name in before:
        api.delete(KIND_OF[kind], namespace, name)
    eventually(lambda: essence(api.children(namespace)) == before, what="as before")


def test_what_is_changed_while_the_operator_is_away_is_put_back(
    api: Api, start_operator: StartOperator, namespace: str
) -> None:
    operator = start_operator()
    api.deploy(namespace, spec={**SPEC, "gateway": {"replicas": 1}})
    before = essence(_all_children(api, namespace))
    operator.end()
    api.delete(SERVICE, namespace, "m-gateway")
    api.patch(DEPLOYMENT, namespace, "m-gateway", {"spec": {"replicas": 5}})
    api.deploy(namespace, "other")
    start_operator()
    eventually(lambda: essence(api.children(namespace)) == before, what="as before")
    _all_children(api, namespace, "other")


def test_unneeded_children_are_deleted(api: Api, operator: Operator, namespace: str) -> None:
    with kubelets(api, namespace):
        api.deploy(namespace)
        _all_children(api, namespace)
        aggregated = {"mode": "Aggregated", "prefill": None, "decode": None, "aggregated": {"replicas": 1}}
        api.change(namespace, aggregated)
        eventually(
            lambda: not [name for _, name in api.children(namespace) if "prefill" in name or "decode" in name],
            what="no prefill, no decode",
        )
    assert [name for kind, name in api.children(namespace) if kind == "Deployment" and "aggregated" in name]


def test_deletion_leaves_nothing(api: Api, operator: Operator, namespace: str) -> None:
    api.deploy(namespace)
    _all_children(api, namespace)
    api.delete(PDDEPLOYMENT, namespace, "m")
    # Kubernetes' collector learns of a new CRD within half a minute.
    eventually(lambda: not api.children(namespace), within=100, what="no children")
    eventually(lambda: not api.items(POD, namespace), what="no pods")
    time.sleep(2)
    assert not api.children(namespace)
    assert "Updated" not in operator.text()


def test_an_object_made_anew_under_the_same_name_gets_children_of_its_own(
    api: Api, operator: Operator, namespace: str
) -> None:
    api.deploy(namespace)
    _all_children(api, namespace)
    for _ in range(3):
        api.delete(PDDEPLOYMENT, namespace, "m")
        uid = api.deploy(namespace)["metadata"]["uid"]

        def owned(uid: str = uid) -> bool:
            owners = [child["metadata"]["ownerReferences"] for child in api.children(namespace).values()]
            return len(owners) == CHILDREN and all([ref["uid"] for ref in refs] == [uid] for refs in owners)

        eventually(owned, what="owned by the new object")
    time.sleep(1)
    assert owned()


def test_an_object_that_is_being_deleted_gets_nothing(api: Api, operator: Operator, namespace: str) -> None:
    api.deploy(namespace)
    _all_children(api, namespace)
    # Somebody else's finalizer keeps the object; its children are deleted meanwhile.
    api.patch(PDDEPLOYMENT, namespace, "m", {"metadata": {"finalizers": ["example.com/wait"]}})
    api.delete(PDDEPLOYMENT, namespace, "m")
    for kind, name in api.children(namespace):
        api.delete(KIND_OF[kind], namespace, name)
    time.sleep(2)
    assert not api.children(namespace)
    api.patch(PDDEPLOYMENT, namespace, "m", {"metadata": {"finalizers": None}})


def test_objects_of_one_name_in_two_namespaces_are_separate(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster
) -> None:
    other = f"{namespace}-2"[-60:].strip("-")
    control_plane.kubectl("create", "namespace", other)
    try:
        start_operator("--namespace", namespace, "--namespace", other)
        api.deploy(namespace)
        api.deploy(other)
        first, second = _all_children(api, namespace), _all_children(api, other)
        assert essence(first) == essence(second)
        api.delete(PDDEPLOYMENT, other, "m")
        eventually(lambda: not api.children(other), what="the other's children gone")
        assert essence(api.children(namespace)) == essence(first)
    finally:
        control_plane.kubectl("delete", "namespace", other, "--wait=false")


def test_only_the_named_namespaces_are_served(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster
) -> None:
    other = f"{namespace}-3"[-60:].strip("-")
    control_plane.kubectl("create", "namespace", other)
    try:
        operator = start_operator()
        api.deploy(other)
        api.deploy(namespace)
        _all_children(api, namespace)
        time.sleep(1)
        assert not api.children(other)
        operator.end()
        start_operator("--verbose")
        _all_children(api, other)
    finally:
        control_plane.kubectl("delete", "namespace", other, "--wait=false")


def test_it_is_live_and_ready_and_ends_at_once(api: Api, operator: Operator, namespace: str) -> None:
    api.deploy(namespace)
    _all_children(api, namespace)
    assert [operator.get(path)[0] for path in ("/healthz", "/readyz", "/other")] == [200, 200, 404]
    page = operator.get("/metrics")[1]
    ready = re.findall(r'\npdx_operator_objects{condition="Ready",status="\w+"} (\S+)', page)
    assert sum(map(float, ready)) == 1
    assert re.search(r'\npdx_operator_last_reconcile_timestamp_seconds{result="ok"} [1-9]', page)
    assert re.search(r'\npdx_operator_reconcile_seconds_count{result="ok"} [1-9]', page)
    assert re.search(r'\npdx_operator_api_requests_total{code="201",verb="PATCH"} [1-9]', page)
    assert operator.end() < GRACE / 2
    assert operator.process.returncode == 0
    with pytest.raises(urllib.error.URLError):
        operator.get("/healthz")


def test_it_lives_but_is_not_ready_while_it_may_not_read_the_cluster(
    control_plane: Cluster, identity: Path, tmp_path: Path
) -> None:
    config = json.loads(control_plane.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": control_plane.kubectl("create", "token", "default").strip()}
    nobody = tmp_path / "nobody.kubeconfig"
    nobody.write_text(json.dumps(config))
    operator = Operator.start(nobody, tmp_path)
    try:

        def lives() -> bool:
            with suppress(urllib.error.URLError):
                return operator.get("/healthz")[0] == 200
            return False

        eventually(lives, what="alive")
        eventually(lambda: "cannot be read yet" in operator.text(), what="kept out")
        assert operator.get("/readyz")[0] == 503
    finally:
        operator.end()


def _progresses(api: Api, namespace: str) -> bool:
    return bool(api.condition(namespace, "Progressing")["status"] != "False")


def _all_children(api: Api, namespace: str, name: str = "m") -> dict:  # type: ignore[type-arg]
    return eventually(  # type: ignore[no-any-return]
        lambda: len(found := api.children(namespace, name)) == CHILDREN and found, what=f"{CHILDREN} children"
    )


def _labelled(api: Api, namespace: str, name: str) -> list[object]:
    kinds = (DEPLOYMENT, KIND_OF["PodDisruptionBudget"])
    return [o for kind in kinds for o in api.items(kind, namespace, labelSelector=f"{LABEL_DEPLOYMENT}={name}")]


def _versions(api: Api, namespace: str) -> dict[tuple[str, str], str]:
    found = {key: body["metadata"]["resourceVersion"] for key, body in api.children(namespace).items()}
    live = api.get(PDDEPLOYMENT, namespace, "m")
    return {**found, ("", ""): live["metadata"]["resourceVersion"] if live else ""}


def _applied(cluster: Cluster) -> float:
    """What the API server counts of the operator's writes, Events and deletions aside: nobody else applies there."""
    return cluster.metric("apiserver_request_total", verb="APPLY")
