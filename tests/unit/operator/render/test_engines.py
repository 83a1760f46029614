"""All children of a PDDeployment, and the manifests of its engines."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.nixl import ENFORCE
from pdx_api.names import ENGINE_PORT, Mode, service_name
from pdx_api.render.engines import pairing_revision
from pdx_api.spec.parse import parse
from pdx_cli.main import main
from pdx_operator.render.overlay import OverlayError
from tests.pddeployments import changed, custom
from tests.unit.operator.render.manifests_of import (
    children_of,
    container_of,
    deployment_of,
    env_of,
    mounts_of,
    pod_of,
    rendered,
)

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").rglob("*.yaml"))


def test_the_children_of_an_object() -> None:
    assert list(rendered()) == [
        ("NetworkPolicy", "engines"),
        ("NetworkPolicy", "gateway"),
        ("Deployment", "prefill"),
        ("Deployment", "decode"),
        ("ServiceAccount", "gateway"),
        ("Role", "gateway"),
        ("RoleBinding", "gateway"),
        ("Service", "gateway"),
        ("Deployment", "gateway"),
        ("PodDisruptionBudget", "prefill"),
        ("PodDisruptionBudget", "decode"),
        ("PodDisruptionBudget", "gateway"),
    ]


def test_every_child_has_labels_and_an_owner() -> None:
    for child in rendered().values():
        metadata = child["metadata"]
        assert metadata["namespace"] == "llm"
        assert metadata["labels"]["pdx.dev/deployment"] == "qwen"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "pdx"
        (owner,) = metadata["ownerReferences"]
        assert owner == {
            "apiVersion": "pdx.dev/v1alpha1",
            "kind": "PDDeployment",
            "name": "qwen",
            "uid": "7",
            "controller": True,
        }


def test_selectors_match_one_role_and_revision() -> None:
    deployment = deployment_of()
    created = children_of(deployment)
    for role in ("prefill", "decode"):
        engines = created["Deployment", role]
        labels = {
            "pdx.dev/deployment": "qwen",
            "pdx.dev/role": role,
            "pdx.dev/revision": pairing_revision(deployment.spec),
        }
        recommended = {
            "app.kubernetes.io/name": "vllm",
            "app.kubernetes.io/instance": "qwen",
            "app.kubernetes.io/component": role,
            "app.kubernetes.io/part-of": "pdx",
        }
        template = engines["spec"]["template"]["metadata"]
        assert engines["spec"]["selector"]["matchLabels"] == labels, "selectors are immutable"
        assert template["labels"] == labels | recommended
        assert engines["metadata"]["labels"] == template["labels"] | {"app.kubernetes.io/managed-by": "pdx"}
        assert template["annotations"] == {"pdx.dev/connector": "NIXL", "pdx.dev/order": "PrefillFirst"}


@pytest.mark.parametrize(("config", "any_patch"), [({}, False), ({ENFORCE: True}, False), ({ENFORCE: False}, True)])
def test_pods_whose_engines_compare_no_hash_say_so(config: dict[str, Any], any_patch: bool) -> None:
    created = children_of(parse(changed("spec.kvTransfer", {"connector": "NIXL", "config": config})))
    for role in ("prefill", "decode"):
        annotations = created["Deployment", role]["spec"]["template"]["metadata"]["annotations"]
        assert (annotations.get("pdx.dev/patch-releases") == "any") is any_patch


def test_a_connector_of_the_users_own_brings_its_code_and_its_protocol() -> None:
    code = {"configMap": {"name": "folder"}, "directory": "nowhere"}
    deployment = parse(changed("spec.kvTransfer", custom(code=code)))
    created = children_of(deployment)
    for role in ("prefill", "decode"):
        template = created["Deployment", role]["spec"]["template"]
        assert template["metadata"]["annotations"] == {
            "pdx.dev/connector": "Custom",
            "pdx.dev/order": "PrefillFirst",
            "pdx.dev/protocol": deployment.spec.protocol,
        }
        assert {"name": "connector", "configMap": {"name": "folder"}} in template["spec"]["volumes"]
        container = container_of(created["Deployment", role])
        mount = {"name": "connector", "mountPath": "/etc/pdx/connector", "readOnly": True}
        assert mount in container["volumeMounts"]
        assert {"name": "PYTHONPATH", "value": "/etc/pdx/connector"} in container["env"]


def test_replicas_resources_ports_and_probes() -> None:
    created = rendered()
    prefill, decode = created["Deployment", "prefill"], created["Deployment", "decode"]
    assert (prefill["spec"]["replicas"], decode["spec"]["replicas"]) == (2, 1)
    container = container_of(decode)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    ports = {"http": ENGINE_PORT, "side-channel": 5600}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1800


def test_the_pods_address_comes_before_its_users() -> None:
    created = rendered()
    for role in ("prefill", "decode"):
        env = container_of(created["Deployment", role])["env"]
        assert env[0] == {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        assert {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "$(POD_IP)"} in env[1:]


def test_what_the_user_writes_is_taken_literally() -> None:
    env = [{"name": "GREETING", "value": "$(HOME)"}, {"name": "POD_IP", "value": "mine"}]
    engines = rendered(engine={"env": env, "args": ["--title=$(X)"]})["Deployment", "prefill"]
    assert env_of(engines)["GREETING"] == "$$(HOME)"
    assert env_of(engines)["POD_IP"] != "mine"
    assert "--title=$$(X)" in container_of(engines)["args"]


def test_kv_storage_is_mounted_and_each_revision_has_its_directory() -> None:
    transfer = {"connector": "SharedStorage", "storage": {"persistentVolumeClaim": {"claimName": "kv-claim"}}}
    deployment = deployment_of(kvTransfer=transfer)
    created = children_of(deployment)
    for role in ("prefill", "decode"):
        assert mounts_of(created["Deployment", role])["/kv"] == {"persistentVolumeClaim": {"claimName": "kv-claim"}}
        config = next(arg for arg in container_of(created["Deployment", role])["args"] if "ExampleConnector" in arg)
        assert f'"shared_storage_path": "/kv/{pairing_revision(deployment.spec)}"' in config
        assert [port["name"] for port in container_of(created["Deployment", role])["ports"]] == ["http"]
    alone = rendered(mode="Aggregated", kvTransfer=transfer)["Deployment", "aggregated"]
    assert "/kv" not in mounts_of(alone)


def test_aggregated_is_one_pool_without_connector() -> None:
    created = rendered(mode="Aggregated")
    engines = created["Deployment", "aggregated"]
    assert engines["spec"]["replicas"] == 3
    assert engines["spec"]["template"]["metadata"]["annotations"] == {}
    assert "--kv-transfer-config" not in container_of(engines)["args"]
    assert [port["name"] for port in container_of(engines)["ports"]] == ["http"]
    assert ("PodDisruptionBudget", "aggregated") in created
    assert ("Deployment", "prefill") not in created


@pytest.mark.parametrize(("seconds", "grace"), [(60, 75), (0, 15), (3600, 3615)])
def test_the_grace_period_covers_serving_on_and_open_requests(seconds: int, grace: int) -> None:
    created = rendered(engine={"drainSeconds": seconds})
    engines, gateway = created["Deployment", "decode"], created["Deployment", "gateway"]
    assert pod_of(engines)["terminationGracePeriodSeconds"] == grace
    # A gateway that is replaced by an upgrade finishes answers that take minutes.
    assert pod_of(gateway)["terminationGracePeriodSeconds"] == max(615, grace)
    assert container_of(engines)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    args = container_of(engines)["args"]
    assert (args[args.index("--shutdown-timeout") + 1] if "--shutdown-timeout" in args else "0") == str(seconds)
    assert {"--drain-seconds=5", f"--shutdown-seconds={max(600, seconds)}"} <= set(container_of(gateway)["args"])


def test_an_engine_pod_may_do_little() -> None:
    engines = rendered()["Deployment", "decode"]
    pod, container = pod_of(engines), container_of(engines)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_everything_an_engine_writes_lies_on_a_volume() -> None:
    engines = rendered()["Deployment", "decode"]
    mounts = mounts_of(engines)
    assert mounts["/dev/shm"] == {"emptyDir": {"medium": "Memory"}}
    assert mounts["/tmp"] == {"emptyDir": {}}
    env = env_of(engines)
    for name in ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert any(env[name].startswith(path) for path in mounts), name


def test_the_users_environment_wins_over_pdx_s_places() -> None:
    env = [{"name": "HF_HOME", "value": "/cache"}]
    assert env_of(rendered(engine={"env": env})["Deployment", "decode"])["HF_HOME"] == "/cache"


def test_rdma_adds_no_capability_that_only_root_can_use() -> None:
    created = rendered(prefill={"resources": {"limits": {"rdma/hca_shared_devices_a": 1}}})
    assert container_of(created["Deployment", "prefill"])["securityContext"]["capabilities"] == {"drop": ["ALL"]}


_SEED = {"name": "PYTHONHASHSEED", "value": "7"}


def _overlay(**engine: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [{"name": "engine", **engine}]}}}


@pytest.mark.parametrize(
    ("overlay", "pairs"),
    [
        (_overlay(image="other:1"), False),
        (_overlay(env=[_SEED]), False),
        (_overlay(env=[{"name": "PYTHONHASHSEED", "$patch": "delete"}]), False),
        (_overlay(env=[{"name": "OTHER", "value": "1"}]), True),
        ({"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}}, True),
    ],
    ids=["image", "variable", "deleted variable", "other variable", "other field"],
)
def test_an_overlay_that_changes_what_a_pair_shares_is_a_new_revision(overlay: dict[str, Any], pairs: bool) -> None:
    plain, changed = deployment_of().spec, deployment_of(prefill=overlay, decode=overlay).spec
    assert (pairing_revision(plain) == pairing_revision(changed)) is pairs


def test_overlays_may_not_give_the_two_sides_different_shared_variables() -> None:
    rendered(prefill=_overlay(env=[_SEED]), decode=_overlay(env=[_SEED]))
    with pytest.raises(OverlayError, match="podTemplate of prefill and decode differ in PYTHONHASHSEED"):
        rendered(prefill=_overlay(env=[_SEED]))


def test_a_model_from_a_volume_is_mounted_read_only_and_named_by_its_path() -> None:
    source = {"persistentVolumeClaim": {"claimName": "weights", "path": "qwen/8b"}}
    engines = rendered(model={"name": "qwen", "source": source})["Deployment", "decode"]
    assert mounts_of(engines)["/models"] == {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in container_of(engines)["volumeMounts"]
    assert container_of(engines)["args"][:2] == ["serve", "/models/qwen/8b"]


def test_the_hubs_token_and_cache() -> None:
    model = {
        "name": "m",
        "tokenSecretRef": {"name": "hub"},
        "cache": {"persistentVolumeClaim": {"claimName": "downloads"}},
    }
    engines = rendered(model=model)["Deployment", "prefill"]
    env = env_of(engines)
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert mounts_of(engines)[env["HF_HOME"]] == {"persistentVolumeClaim": {"claimName": "downloads"}}


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        ({}, {"maxSurge": "25%", "maxUnavailable": 0}),
        ({"maxSurge": 0}, {"maxSurge": 0, "maxUnavailable": 1}),
        ({"maxSurge": "0%", "maxUnavailable": "0%"}, {"maxSurge": "0%", "maxUnavailable": 1}),
        ({"maxSurge": 0, "maxUnavailable": "50%"}, {"maxSurge": 0, "maxUnavailable": "50%"}),
    ],
)
def test_pods_are_replaced_within_the_rollouts_bounds(rollout: dict[str, Any], expected: dict[str, Any]) -> None:
    strategy = rendered(rollout=rollout)["Deployment", "decode"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": expected}


def test_the_longest_name_gives_names_that_kubernetes_takes() -> None:
    name = "a" * 41
    body = {"model": {"name": "m"}, "mode": "Aggregated", "aggregated": {}}
    deployment = parse(
        {"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": name}, "spec": body}
    )
    assert all(len(child["metadata"]["name"]) <= 63 for child in children_of(deployment).values())
    services = [service.name for connector in CONNECTORS.values() for service in connector.services]
    assert all(len(service_name(name, service, pairing_revision(deployment.spec))) <= 63 for service in services)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_renders(example: Path, mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(example), "--set", f"spec.mode={mode}", "--namespace", "llm"]) == 0
    out = capsys.readouterr().out
    documents = list(yaml.safe_load_all(out))
    # Deployment, Service and NetworkPolicy of its side service.
    served = 3 * example.stem.startswith(("lmcache", "mooncake-store"))
    assert len(documents) == (12 + served if mode is Mode.DISAGGREGATED else 10)
    assert {document["metadata"]["namespace"] for document in documents} == {"llm"}
    assert "&id" not in out, "aliases are YAML, but nobody expects them in manifests"


def test_a_wrong_overlay_is_named_by_its_field() -> None:
    overlay = {"podTemplate": {"spec": {"containers": [{"name": "engine", "env": [{"name": "POD_IP", "value": "x"}]}]}}}
    with pytest.raises(OverlayError, match=r"^spec\.decode\.podTemplate\.spec\.containers\[engine\]\.env may not"):
        rendered(mode="Aggregated", decode=overlay)


def test_render_reports_a_wrong_overlay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.yaml"
    overlay = "{spec: {containers: [{name: engine, env: [{name: POD_IP, value: x}]}]}}"
    file.write_text(next(path for path in EXAMPLES if path.name == "qwen.yaml").read_text())
    assert main(["render", str(file), "--set", f"spec.decode.podTemplate={overlay}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "spec.decode.podTemplate.spec.containers[engine].env may not change POD_IP" in err
    assert err.count("\n") == 1
