"""The operator gives way to other writers, and reports it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from pdx_api.kube.kinds import DEPLOYMENT, KIND_OF
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.harness import Api, Operator, at_rest, eventually, kubelets

pytestmark = pytest.mark.timeout(300)

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SERVICE = KIND_OF["Service"]
DEPLOYMENTS = {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}
ON_WRITE = {**DEPLOYMENTS, "operations": ["CREATE", "UPDATE"]}


def test_a_webhook_that_is_down_is_a_condition_and_hides_nothing_else(
    api: Api, operator: Operator, namespace: str
) -> None:
    webhook = {
        "name": "down.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [ON_WRITE],
        "namespaceSelector": _only(namespace),
    }
    with kubelets(api, namespace):
        with _installed(api, "validatingwebhookconfigurations", namespace, {"webhooks": [webhook]}):
            time.sleep(0.5)
            api.deploy(namespace)
            eventually(lambda: api.condition(namespace, "Degraded").get("status") == "True", what="degraded")
            assert "down.example.com" in api.condition(namespace, "Degraded")["message"]
            assert ("Service", "m-gateway") in api.children(namespace)
            eventually(lambda: "Created" in _reasons(api, namespace), what="an Event")
            eventually(lambda: _warnings(operator, "down.example.com"), what="a warning in the log")
            assert [event["reason"] for event in api.events(namespace)].count("ChildRejected") == 1
        eventually(lambda: api.is_ready(namespace), what="ready")


def test_a_reverted_field_is_written_ever_more_rarely(
    api: Api, operator: Operator, namespace: str, control_plane: Cluster
) -> None:
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(lambda: api.is_ready(namespace), what="ready")
        before, over = _applied(control_plane), threading.Event()

        def undo() -> None:
            while not over.wait(0.1):
                api.patch(SERVICE, namespace, "m-gateway", {"spec": {"selector": {"app": "other"}}})

        thread = threading.Thread(target=undo)
        thread.start()
        try:
            time.sleep(6)
            eventually(lambda: api.condition(namespace, "Degraded")["reason"] == "ChildReverted", what="reported")
        finally:
            over.set()
            thread.join()
        condition = api.condition(namespace, "Degraded")
        assert condition["status"] == "Unknown"
        assert "spec.selector.app of Service m-gateway" in condition["message"]
        assert _applied(control_plane) - before <= 10
        assert _reasons(api, namespace).count("Updated") == 1
        eventually(lambda: not _diverted(api, namespace), what="restored in the end")


def test_a_field_that_is_never_granted_is_written_once(
    api: Api, operator: Operator, namespace: str, control_plane: Cluster
) -> None:
    # Zero stands for the default, which is 3.
    probe = {"containers": [{"name": "engine", "livenessProbe": {"failureThreshold": 0}}]}
    spec = {"model": {"name": "m"}, "prefill": {"replicas": 1}, "decode": {"podTemplate": {"spec": probe}}}
    with kubelets(api, namespace):
        api.deploy(namespace, spec=spec)
        _assert_rests_at(api, namespace, control_plane, "failureThreshold")
        api.change(namespace, {"decode": {"podTemplate": None}})
        eventually(lambda: api.condition(namespace, "Degraded")["reason"] == "NothingFound", what="forgotten")


def test_a_policy_that_rewrites_images_has_the_last_word(
    api: Api, operator: Operator, namespace: str, control_plane: Cluster
) -> None:
    rewrite = '[JSONPatch{op: "replace", path: "/spec/template/spec/containers/0/image", value: "mirror/x:1"}]'
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [ON_WRITE]},
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": rewrite}}],
    }
    binding = {"policyName": namespace, "matchResources": {"namespaceSelector": _only(namespace)}}
    with (
        kubelets(api, namespace),
        _installed(api, "mutatingadmissionpolicies", namespace, {"spec": policy}),
        _installed(api, "mutatingadmissionpolicybindings", namespace, {"spec": binding}),
    ):
        eventually(lambda: _image(api, namespace, "probe").startswith("mirror"), what="the policy in force")
        api.deploy(namespace)
        _assert_rests_at(api, namespace, control_plane, "image")
        assert _image(api, namespace, "m-gateway") == "mirror/x:1"
        api.change(namespace, {"gateway": {"workers": 2}})
        eventually(lambda: "--workers=2" in str(api.get(DEPLOYMENT, namespace, "m-gateway")), what="other changes")
        _assert_rests_at(api, namespace, control_plane, "image")


def _assert_rests_at(api: Api, namespace: str, cluster: Cluster, field: str) -> None:
    """The object is ready, its condition names the field, and nothing is written any more."""
    eventually(lambda: api.is_ready(namespace), what="ready")
    eventually(lambda: api.condition(namespace, "Degraded")["reason"] == "ChildReverted", what="reported")
    condition = api.condition(namespace, "Degraded")
    assert condition["status"] == "Unknown"
    assert field in condition["message"]
    # Each start of a pod moves its Deployment.
    eventually(lambda: api.condition(namespace, "Progressing")["status"] == "False", what="settled")
    before = at_rest(lambda: _applied(cluster))
    time.sleep(4)
    assert _applied(cluster) == before
    assert not [event for event in api.events(namespace) if field in event["note"] and event["reason"] == "Updated"]


def _image(api: Api, namespace: str, name: str) -> str:
    """The image of a Deployment's first container; `probe` is made for it."""
    if name == "probe":
        container = {"name": "c", "image": "x"}
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
        spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
        with suppress(OSError):
            api.delete(DEPLOYMENT, namespace, name)
            api.create(DEPLOYMENT, namespace, {"metadata": {"name": name}, "spec": spec})
    body = api.get(DEPLOYMENT, namespace, name)
    return str(body["spec"]["template"]["spec"]["containers"][0]["image"]) if body else ""


@contextmanager
def _installed(api: Api, plural: str, name: str, body: dict[str, Any]) -> Iterator[None]:
    api.request("POST", f"{ADMISSION}/{plural}", {"metadata": {"name": name}, **body})
    try:
        yield
    finally:
        api.request("DELETE", f"{ADMISSION}/{plural}/{name}")


def _only(namespace: str) -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def _diverted(api: Api, namespace: str) -> bool:
    service = api.get(SERVICE, namespace, "m-gateway")
    return service is None or "app" in service["spec"]["selector"]


def _reasons(api: Api, namespace: str) -> list[str]:
    return [event["reason"] for event in api.events(namespace)]


def _warnings(operator: Operator, text: str) -> list[str]:
    return [line for line in operator.text().splitlines() if " WARNING " in line and text in line]


def _applied(cluster: Cluster) -> float:
    return cluster.metric("apiserver_request_total", verb="APPLY")
