"""HTTPRoutes, upgrades of gateways a few at a time, and replicas that PDX leaves alone."""

import json
import time
from typing import Any

import pytest

from pdx_api.kube.kinds import DEPLOYMENT, HTTP_ROUTE
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.conftest import StartOperator
from tests.cluster.runtime.gateway_api import ROUTE, gateway_api
from tests.cluster.runtime.harness import SPEC, Api, Operator, at_rest, eventually, kubelets

pytestmark = pytest.mark.timeout(240)

WITH_ROUTE = {**SPEC, "gateway": {"httpRoute": ROUTE}}


def test_a_route_is_made_as_soon_as_the_cluster_has_the_gateway_api(
    api: Api, operator: Operator, namespace: str, control_plane: Cluster
) -> None:
    api.deploy(namespace, spec=WITH_ROUTE)
    degraded = eventually(
        lambda: api.condition(namespace, "Degraded").get("reason") == "GatewayAPIMissing", what="reported"
    )
    assert degraded
    assert api.get(DEPLOYMENT, namespace, "m-gateway"), "the other children are there"
    with gateway_api(control_plane):
        route = eventually(lambda: api.get(HTTP_ROUTE, namespace, "m-gateway"), 90, "the route")
        (rule,) = route["spec"]["rules"]
        assert [(each["name"], each["port"]) for each in rule["backendRefs"]] == [("m-gateway", 80)]
        assert route["spec"]["hostnames"] == ["llm.example.com"]
        eventually(lambda: api.status(namespace).get("url") == "https://llm.example.com", what="the URL")
        api.change(namespace, {"gateway": {"httpRoute": {"hostnames": ["a.example.com"]}}})
        eventually(
            lambda: (api.get(HTTP_ROUTE, namespace, "m-gateway") or {})["spec"]["hostnames"] == ["a.example.com"],
            what="changed",
        )
        api.change(namespace, {"gateway": {"httpRoute": None}})
        eventually(lambda: api.get(HTTP_ROUTE, namespace, "m-gateway") is None, 90, "the route deleted")
        eventually(lambda: api.status(namespace)["url"] == f"http://m-gateway.{namespace}.svc", what="the URL")


def test_every_form_of_a_route_is_accepted(
    api: Api, operator: Operator, namespace: str, control_plane: Cluster
) -> None:
    parents: list[dict[str, Any]] = [
        {"name": "a"},
        {"name": "b", "namespace": "c", "sectionName": "https", "port": 443},
    ]
    parents.append({"name": "x", "kind": "ListenerSet"})
    tls = {"secretRef": {"name": "t"}}
    with gateway_api(control_plane):
        api.deploy(namespace, spec={**SPEC, "gateway": {"httpRoute": {"parentRefs": parents}, "tls": tls}})
        route = eventually(lambda: api.get(HTTP_ROUTE, namespace, "m-gateway"), 90, "the route")
        assert route["spec"]["rules"][0]["backendRefs"][0]["port"] == 443
        assert route["spec"]["rules"][0]["timeouts"] == {"request": "0s"}
        at_rest(operator.object_writes)  # the API server's defaults are no difference


def test_an_upgrade_replaces_the_gateways_of_a_few_objects_at_a_time(
    api: Api, start_operator: StartOperator, namespace: str
) -> None:
    names = [f"m{number}" for number in range(4)]
    flags = ("--namespace", namespace, "--max-gateway-upgrades", "2")
    with kubelets(api, namespace) as nodes:
        first = start_operator(*flags, "--gateway-image", "gateway:1")
        for name in names:
            api.deploy(namespace, name)
        eventually(lambda: all(api.is_ready(namespace, name) for name in names), what="ready")
        first.end()
        nodes.holds = lambda pod: pod["spec"]["containers"][0]["image"] == "gateway:2"
        start_operator(*flags, "--gateway-image", "gateway:2")

        def upgraded() -> list[str]:
            return [name for name in names if _image(api, namespace, name) == "gateway:2"]

        eventually(lambda: len(upgraded()) == 2, what="two are replaced")
        reasons = [api.condition(namespace, "Progressing", name)["reason"] for name in names]
        eventually(
            lambda: sum(_reason(api, namespace, name) == "GatewayUpgradeWaiting" for name in names) == 2,
            what=f"the others wait: {reasons}",
        )
        time.sleep(2)
        assert len(upgraded()) == 2, "nothing is ready yet"
        served = [api.condition(namespace, "Available", name)["status"] for name in names]
        assert served == ["True"] * 4, "the old gateways serve"
        nodes.holds = lambda pod: False
        eventually(lambda: len(upgraded()) == 4, what="all are replaced")
        eventually(lambda: all(_reason(api, namespace, name) == "Complete" for name in names), what="complete")


def _image(api: Api, namespace: str, name: str) -> Any:
    body = api.get(DEPLOYMENT, namespace, f"{name}-gateway") or {}
    return body["spec"]["template"]["spec"]["containers"][0]["image"]


def _reason(api: Api, namespace: str, name: str) -> str:
    return str(api.condition(namespace, "Progressing", name).get("reason"))


def _decode_status(api: Api, namespace: str) -> dict[str, Any]:
    return next(each for each in api.status(namespace)["roles"] if each["role"] == "decode")


def test_replicas_that_the_spec_leaves_out_survive_a_rollout(api: Api, operator: Operator, namespace: str) -> None:
    def counts(role: str) -> dict[str, int]:
        labels = f"pdx.dev/deployment=m,pdx.dev/role={role}"
        found = api.items(DEPLOYMENT, namespace, labelSelector=labels)
        return {body["metadata"]["name"]: body["spec"]["replicas"] for body in found}

    with kubelets(api, namespace):
        api.deploy(namespace, spec={"model": {"name": "m"}, "prefill": {}, "decode": {}})
        eventually(lambda: api.is_ready(namespace), what="ready")
        assert [*counts("prefill").values(), *counts("decode").values(), *counts("gateway").values()] == [1, 1, 1]
        (old,) = counts("decode")
        for name, replicas in ((old, 3), ("m-gateway", 2)):
            api.patch(DEPLOYMENT, namespace, name, {"spec": {"replicas": replicas}}, "scale")
        eventually(lambda: _decode_status(api, namespace)["readyReplicas"] == 3, what="three engines")
        assert counts("decode") == {old: 3}
        api.change(namespace, {"engine": {"maxModelLen": 4096}, "rollout": {"maxSurge": "100%"}})
        eventually(lambda: old not in counts("decode"), what="rolled out")
        eventually(lambda: list(counts("decode").values()) == [3], what="three again")
        # Until the status reports the end of the rollout, the operator keeps the number.
        eventually(lambda: _reason(api, namespace, "m") == "Complete", what="complete")
        assert list(counts("prefill").values()) == [1]
        assert counts("gateway") == {"m-gateway": 2}
        (new,) = counts("decode")
        api.patch(DEPLOYMENT, namespace, new, {"spec": {"replicas": 2}}, "scale")
        eventually(lambda: _decode_status(api, namespace)["desiredReplicas"] == 2, what="two engines")
        managed = (api.get(DEPLOYMENT, namespace, new) or {})["metadata"]["managedFields"]
        own = [entry for entry in managed if entry["manager"] == "pdx-operator" and entry["operation"] == "Apply"]
        assert '"f:replicas"' not in json.dumps(own)


def test_a_paused_object_stays_as_it_is(api: Api, operator: Operator, namespace: str) -> None:
    api.deploy(namespace)
    eventually(lambda: api.get(DEPLOYMENT, namespace, "m-gateway"), what="created")
    api.change(namespace, {"paused": True})
    eventually(lambda: _reason(api, namespace, "m") == "Paused", what="paused")
    api.delete(DEPLOYMENT, namespace, "m-gateway")
    eventually(lambda: api.get(DEPLOYMENT, namespace, "m-gateway") is None, what="deleted")
    time.sleep(1.5)
    assert api.get(DEPLOYMENT, namespace, "m-gateway") is None
    api.change(namespace, {"paused": False})
    eventually(lambda: api.get(DEPLOYMENT, namespace, "m-gateway"), what="restored")
