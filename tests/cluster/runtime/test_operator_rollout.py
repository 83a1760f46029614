"""Rollouts, scaling and reversal as the operator performs them, with pods that the test marks as ready."""

import json
import time
from typing import Any

import pytest

from pdx_api.kube.kinds import DEPLOYMENT, KIND_OF, POD
from pdx_api.names import ANNOTATION_APPLIED, ANNOTATION_TEMPLATE, FIELD_MANAGER, LABEL_REVISION, LABEL_ROLE
from tests.cluster.runtime.harness import Api, Operator, Sampled, eventually, kubelets

pytestmark = pytest.mark.timeout(300)

TWO = {"model": {"name": "m"}, "prefill": {"replicas": 2}, "decode": {"replicas": 2}}
PAIRING = {"engine": {"dtype": "float32"}}
"""A change that makes another revision."""


def test_a_change_of_pairing_moves_both_roles_and_never_leaves_too_few(
    api: Api, operator: Operator, namespace: str
) -> None:
    with kubelets(api, namespace) as nodes:
        first = _settled(api, namespace, TWO)
        nodes.holds = lambda pod: pod["metadata"]["labels"].get(LABEL_REVISION, first) != first
        api.change(namespace, PAIRING)
        eventually(lambda: len(_revisions(api, namespace)) == 2, what="both revisions")
        time.sleep(2)
        # Not one new engine is ready: the old ones all serve.
        assert _ready(api, namespace, first) == {"prefill": 2, "decode": 2}
        nodes.holds = lambda pod: False
        with Sampled(lambda: _serving(api, namespace)) as pairs:
            eventually(lambda: _revisions(api, namespace).keys().isdisjoint({first}), what="old one gone")
        assert min(pairs.values) >= 2
        second = api.status(namespace)["revision"]
        eventually(lambda: _ready(api, namespace, second) == {"prefill": 2, "decode": 2}, what="new ones ready")
    names = [name for _, name in api.children(namespace)]
    assert not [name for name in names if first in name]
    assert len([name for name in names if second in name]) == 2


def test_without_spare_devices_a_rollout_gets_through(api: Api, operator: Operator, namespace: str) -> None:
    spec: dict[str, Any] = {**TWO, "prefill": {"replicas": 1}, "decode": {"replicas": 1}, "rollout": {"maxSurge": 0}}
    with kubelets(api, namespace):
        first = _settled(api, namespace, spec)
        api.change(namespace, PAIRING)
        most, messages = 0, set()

        def through() -> bool:
            nonlocal most
            messages.add(api.condition(namespace, "Progressing")["message"])
            pods = [p for p in api.items(POD, namespace) if "deletionTimestamp" not in p["metadata"]]
            most = max(most, len([p for p in pods if p["metadata"]["labels"].get(LABEL_ROLE) != "gateway"]))
            return api.is_ready(namespace) and first not in _revisions(api, namespace)

        eventually(through, what="rolled")
    assert most <= 2
    assert [message for message in messages if "in place" in message], messages


def test_a_rollout_is_reversed(api: Api, operator: Operator, namespace: str) -> None:
    with kubelets(api, namespace) as nodes:
        first = _settled(api, namespace, TWO)
        uids = _pods(api, namespace)
        nodes.holds = lambda pod: pod["metadata"]["labels"].get(LABEL_REVISION, first) != first
        api.change(namespace, PAIRING)
        eventually(lambda: len(_revisions(api, namespace)) == 2, what="both revisions")
        api.change(namespace, {"engine": {"dtype": None}})
        eventually(lambda: _revisions(api, namespace).keys() == {first}, what="only the first")
        eventually(lambda: api.is_ready(namespace), what="ready")
        assert _pods(api, namespace) == uids


def test_scaling_touches_nothing_else(api: Api, operator: Operator, namespace: str) -> None:
    with kubelets(api, namespace):
        revision = _settled(api, namespace, TWO)
        before = {key: child["metadata"]["generation"] for key, child in _deployments(api, namespace).items()}
        pods = _pods(api, namespace)
        api.change(namespace, {"decode": {"replicas": 3}})
        eventually(lambda: _ready(api, namespace, revision) == {"prefill": 2, "decode": 3}, what="three")
        eventually(lambda: api.is_ready(namespace), what="ready")
        after = {key: child["metadata"]["generation"] for key, child in _deployments(api, namespace).items()}
        assert {key for key in before if before[key] != after[key]} == {f"m-decode-{revision}"}
        assert pods < _pods(api, namespace)
        api.change(namespace, {"prefill": {"replicas": 0}, "decode": {"replicas": 1}})
        eventually(lambda: _ready(api, namespace, revision) == {"prefill": 0, "decode": 1}, what="one")


def test_resources_roll_their_role_in_place(api: Api, operator: Operator, namespace: str) -> None:
    with kubelets(api, namespace):
        revision = _settled(api, namespace, TWO)
        prefill = _pods(api, namespace, "prefill")
        api.change(namespace, {"decode": {"resources": {"requests": {"cpu": "1m"}}}})

        def rolled() -> bool:
            pods = [p for p in api.items(POD, namespace) if p["metadata"]["labels"].get(LABEL_ROLE) == "decode"]
            requests = [p["spec"]["containers"][0]["resources"].get("requests") for p in pods]
            return len(pods) == 2 and all(r == {"cpu": "1m"} for r in requests) and api.is_ready(namespace)

        eventually(rolled, what="rolled in place")
        assert _revisions(api, namespace).keys() == {revision}
        assert _pods(api, namespace, "prefill") == prefill


def test_a_new_operator_restarts_no_engine(api: Api, start_operator: Any, namespace: str) -> None:
    first = start_operator("--namespace", namespace, "--gateway-image", "gateway:1")
    with kubelets(api, namespace):
        _settled(api, namespace, TWO)
        first.end()
        for name, body in _deployments(api, namespace).items():
            if LABEL_REVISION in body["metadata"]["labels"]:
                _age(api, namespace, name, body)
        eventually(lambda: _aged(api, namespace) == 4, what="engines of the older renderer")
        engines = _pods(api, namespace, "prefill") | _pods(api, namespace, "decode")
        start_operator("--namespace", namespace, "--gateway-image", "gateway:2")

        def upgraded() -> bool:
            gateway = api.get(DEPLOYMENT, namespace, "m-gateway")
            return bool(gateway and gateway["spec"]["template"]["spec"]["containers"][0]["image"] == "gateway:2")

        eventually(upgraded, what="the gateway's image")
        eventually(lambda: api.is_ready(namespace), what="ready")
        time.sleep(1)
        assert _pods(api, namespace, "prefill") | _pods(api, namespace, "decode") == engines
        assert _aged(api, namespace) == 4


def _age(api: Api, namespace: str, name: str, body: dict[str, Any]) -> None:
    """Have a Deployment as an older renderer would have written it: another grace period, and no such variable."""
    template = json.loads(body["metadata"]["annotations"][ANNOTATION_TEMPLATE])
    template["spec"]["terminationGracePeriodSeconds"] = 77
    template["spec"]["containers"][0]["env"].append({"name": "OLD", "value": "1"})
    notes = {ANNOTATION_TEMPLATE: json.dumps(template), ANNOTATION_APPLIED: "older"}
    # As the operator's own, as it would have been.
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": body["metadata"]["labels"],
            "annotations": {**_owned(body), **notes},
            "ownerReferences": body["metadata"]["ownerReferences"],
        },
        "spec": {
            **{field: body["spec"][field] for field in ("replicas", "selector", "strategy", "minReadySeconds")},
            "template": template,
        },
    }
    query = f"?fieldManager={FIELD_MANAGER}&force=true"
    api.request("PATCH", DEPLOYMENT.path(namespace, name) + query, manifest, "application/apply-patch+yaml")


def _owned(body: dict[str, Any]) -> dict[str, str]:
    return {key: value for key, value in body["metadata"]["annotations"].items() if key.startswith("pdx.dev/")}


def _aged(api: Api, namespace: str) -> int:
    """Engines with the older template, when there are no others."""
    pods = [p for p in api.items(POD, namespace) if p["metadata"]["labels"].get(LABEL_ROLE) != "gateway"]
    aged = [p for p in pods if p["spec"]["terminationGracePeriodSeconds"] == 77]
    return len(aged) if len(aged) == len(pods) else 0


def _serving(api: Api, namespace: str) -> int:
    """Pairs that serve, over all revisions, at one moment."""
    found: dict[str, dict[str, int]] = {}
    for child in _deployments(api, namespace).values():
        labels = child["metadata"]["labels"]
        if LABEL_REVISION in labels:
            available = child["status"].get("availableReplicas", 0)
            found.setdefault(labels[LABEL_REVISION], {})[labels[LABEL_ROLE]] = available
    return sum(min(ready.get("prefill", 0), ready.get("decode", 0)) for ready in found.values())


def _settled(api: Api, namespace: str, spec: dict[str, Any]) -> str:
    api.deploy(namespace, spec=spec)
    eventually(lambda: api.is_ready(namespace), what="ready")
    revision: str = api.status(namespace)["revision"]
    # An object is Ready with one engine of each role.
    expected = {role: spec[role]["replicas"] for role in ("prefill", "decode")}
    eventually(lambda: _ready(api, namespace, revision) == expected, what="all engines ready")
    return revision


def _deployments(api: Api, namespace: str) -> dict[str, Any]:
    return {name: child for (kind, name), child in api.children(namespace).items() if KIND_OF[kind] is DEPLOYMENT}


def _revisions(api: Api, namespace: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, child in _deployments(api, namespace).items():
        if revision := child["metadata"]["labels"].get(LABEL_REVISION):
            found.setdefault(revision, []).append(name)
    return found


def _ready(api: Api, namespace: str, revision: str) -> dict[str, int]:
    return {
        child["metadata"]["labels"][LABEL_ROLE]: child["status"].get("availableReplicas", 0)
        for child in _deployments(api, namespace).values()
        if child["metadata"]["labels"].get(LABEL_REVISION) == revision
    }


def _pods(api: Api, namespace: str, role: str = "") -> set[str]:
    return {
        pod["metadata"]["uid"]
        for pod in api.items(POD, namespace)
        if pod["metadata"]["labels"].get(LABEL_ROLE) in ({role} if role else {"prefill", "decode"})
    }
