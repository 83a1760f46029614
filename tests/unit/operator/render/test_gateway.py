"""Manifests of the gateway, and network policies."""

from typing import Any

import pytest

from pdx_api.names import ENGINE_PORT, OPERATOR_LABELS
from pdx_operator.render.rbac import RoleKind
from pdx_proxy.__main__ import create_parser
from tests.unit.operator.render.manifests_of import (
    container_of,
    deployment_of,
    env_of,
    manifests_of,
    mounts_of,
    pod_of,
    rendered,
)


def test_a_change_of_routing_touches_the_gateway_alone() -> None:
    before = rendered()
    after = rendered(routing={"split": "Never", "onPrefillFailure": "Local", "deadlines": {"prefillSeconds": 60}})
    assert {key for key in before if before[key] != after[key]} == {("Deployment", "gateway")}
    args = container_of(after["Deployment", "gateway"])["args"]
    assert [arg for arg in args if arg not in container_of(before["Deployment", "gateway"])["args"]] == [
        *("--split=Never", "--on-prefill-failure=Local", "--prefill-seconds=60"),
    ]


def test_clients_keys_are_a_file_of_the_gateway() -> None:
    created = rendered(gateway={"auth": {"secretRef": {"name": "clients"}}})
    gateway = created["Deployment", "gateway"]
    items = [{"key": "keys", "path": "client-keys"}]
    secret = {"secretName": "clients", "items": items, "defaultMode": 0o440, "optional": False}
    assert mounts_of(gateway)["/etc/pdx/client-keys"] == {"secret": secret}
    assert all(mount.get("readOnly") for mount in container_of(gateway)["volumeMounts"] if "pdx" in mount["mountPath"])
    args = container_of(gateway)["args"]
    assert "--client-keys=/etc/pdx/client-keys/client-keys" in args
    assert create_parser().parse_args(args).client_keys == "/etc/pdx/client-keys/client-keys"
    assert rendered()["Deployment", "decode"] == created["Deployment", "decode"]


def test_engines_and_gateway_get_the_engine_key() -> None:
    created = rendered(engine={"apiKeySecretRef": {"name": "key", "key": "k"}})
    for role in ("prefill", "decode"):
        assert env_of(created["Deployment", role])["VLLM_API_KEY"] == {"secretKeyRef": {"name": "key", "key": "k"}}
    gateway = created["Deployment", "gateway"]
    assert mounts_of(gateway)["/etc/pdx/engine-key"]["secret"]["items"] == [{"key": "k", "path": "engine-key"}]
    assert "--engine-key=/etc/pdx/engine-key/engine-key" in container_of(gateway)["args"]


GATEWAY = ("Deployment", "gateway")


def test_the_gateways_flags_name_object_and_ports() -> None:
    gateway = rendered(gateway={"replicas": 2, "workers": 3})[GATEWAY]
    assert gateway["spec"]["replicas"] == 2
    container = container_of(gateway)
    args = create_parser().parse_args(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (args.deployment, args.namespace, args.workers) == ("qwen", "llm", 3)
    assert (args.listen.port, args.admin.port) == (ports["http"], ports["admin"])
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")} == {
        "/healthz",
        "/readyz",
    }
    assert all(container[f"{kind}Probe"]["httpGet"]["port"] == "admin" for kind in ("liveness", "readiness"))


def test_unset_replicas_are_not_written() -> None:
    assert "replicas" not in rendered(gateway={"workers": 2})[GATEWAY]["spec"]


def test_a_gateway_is_replaced_before_it_goes() -> None:
    strategy = rendered()[GATEWAY]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_gateways_image_is_the_operators_unless_the_spec_names_one() -> None:
    assert container_of(rendered()[GATEWAY])["image"] == "pdx-gateway:1"
    assert container_of(rendered(gateway={"image": "mine:2"})[GATEWAY])["image"] == "mine:2"


def test_a_gateway_pod_may_read_pods_and_write_nothing() -> None:
    created = rendered()
    pod, container = pod_of(created[GATEWAY]), container_of(created[GATEWAY])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsUser"] == 65532
    account = created["ServiceAccount", "gateway"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "512Mi"}}, "not BestEffort"
    binding = created["RoleBinding", "gateway"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "llm"}]
    assert binding["roleRef"]["name"] == created["Role", "gateway"]["metadata"]["name"]
    assert created["Role", "gateway"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]


@pytest.mark.parametrize("kind", list(RoleKind))
def test_an_operator_binds_the_role_of_its_chart(kind: RoleKind) -> None:
    created = manifests_of(deployment_of(), gateway_role=kind)
    assert not [each for each in created if each["kind"] == "Role"]
    (binding,) = (each for each in created if each["kind"] == "RoleBinding")
    assert binding["metadata"]["name"] == f"qwen-gateway-{kind.lower()}"
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (kind, "pdx-gateway")


def test_pull_secrets_of_the_default_image() -> None:
    def secrets(**spec: Any) -> object:
        created = manifests_of(deployment_of(**spec), gateway_pull_secrets=("mirror",))
        (gateway,) = (m for m in created if (m["kind"], m["metadata"]["name"]) == ("Deployment", "qwen-gateway"))
        return pod_of(gateway).get("imagePullSecrets")

    assert secrets() == [{"name": "mirror"}]
    assert secrets(gateway={"image": "mine:1"}) is None


def test_clients_reach_the_gateway_by_its_service() -> None:
    created = rendered(gateway={"service": {"type": "NodePort", "annotations": {"a": "b"}}})
    service = created["Service", "gateway"]
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert service["spec"] == {
        "type": "NodePort",
        "selector": {"pdx.dev/deployment": "qwen", "pdx.dev/role": "gateway"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
    }
    labels = created[GATEWAY]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize("name", ["prefill", "decode", "gateway"])
def test_a_disruption_budget_covers_all_revisions(name: str) -> None:
    created = rendered()
    budget = created["PodDisruptionBudget", name]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    labels = created["Deployment", name]["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert "pdx.dev/revision" not in budget["selector"]["matchLabels"]


def test_only_gateway_and_engines_reach_an_engine() -> None:
    policy = rendered()["NetworkPolicy", "engines"]["spec"]
    from_gateway, queries_identity, from_engines = policy["ingress"]
    gateway = {"podSelector": {"matchLabels": {"pdx.dev/deployment": "qwen", "pdx.dev/role": "gateway"}}}
    assert from_gateway == {"from": [gateway], "ports": [{"protocol": "TCP", "port": ENGINE_PORT}]}
    assert queries_identity == {"from": [gateway], "ports": [{"protocol": "TCP", "port": 8998}]}
    assert from_engines == {"from": [{"podSelector": policy["podSelector"]}]}
    (roles,) = policy["podSelector"]["matchExpressions"]
    assert set(roles["values"]) == {"prefill", "decode", "aggregated"}


def test_the_admin_port_is_closed_by_default() -> None:
    assert rendered()["NetworkPolicy", "gateway"]["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}]}]


def test_scrapers_reach_gateway_and_engines() -> None:
    sources = [
        {"podSelector": {"matchLabels": {"app": "vector"}}},
        {"namespaceSelector": {"matchLabels": {"team": "sre"}}},
        {"namespaceSelector": {"matchLabels": {"team": "sre"}}, "podSelector": {"matchLabels": {"app": "prometheus"}}},
    ]
    created = rendered(observability={"scrapeFrom": sources})
    peers = [
        {"podSelector": {"matchLabels": {"app": "vector"}}},
        {"namespaceSelector": {"matchLabels": {"team": "sre"}}, "podSelector": {}},
        {
            "namespaceSelector": {"matchLabels": {"team": "sre"}},
            "podSelector": {"matchLabels": {"app": "prometheus"}},
        },
    ]
    assert created["NetworkPolicy", "engines"]["spec"]["ingress"][0]["from"][1:] == peers
    assert created["NetworkPolicy", "gateway"]["spec"]["ingress"][1] == {
        "from": peers,
        "ports": [{"protocol": "TCP", "port": 9090}],
    }


def test_the_operators_pods_reach_the_gateways_admin_port() -> None:
    created = manifests_of(deployment_of(), operator_namespace="pdx-system")
    (policy,) = (m for m in created if m["kind"] == "NetworkPolicy" and m["metadata"]["name"] == "qwen-gateway")
    (peer,) = policy["spec"]["ingress"][1]["from"]
    assert peer == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "pdx-system"}},
        "podSelector": {"matchLabels": dict(OPERATOR_LABELS)},
    }


def test_traces_are_flags_and_the_name_of_the_pod() -> None:
    traced = rendered(observability={"tracing": {"endpoint": "http://collector:4318", "ratio": 0.5}})[GATEWAY]
    container = container_of(traced)
    assert {"--tracing-endpoint=http://collector:4318", "--tracing-ratio=0.5"} <= set(container["args"])
    assert container["env"][1]["value"] == "k8s.pod.ip=$(POD_IP),pdx.deployment=qwen"
    plain = rendered()[GATEWAY]
    assert "env" not in container_of(plain)
    annotations = [each["metadata"]["annotations"] for each in (plain, traced)]
    assert annotations[0] != annotations[1], "the inputs contain it"
