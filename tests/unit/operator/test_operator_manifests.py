"""A PDDeployment's children as Kubernetes objects."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_api.engines import pairing_revision
from pdx_api.names import ENGINE_PORT, Mode
from pdx_api.parse import parse
from pdx_api.types import PDDeployment
from pdx_cli.main import main
from pdx_operator.manifests import children

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
Manifests = dict[tuple[str, str], dict[str, Any]]


def _deployment(**spec: Any) -> PDDeployment:
    pools = {"prefill": {"replicas": 2}, "decode": {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}}}
    body = {"model": {"name": "Qwen/Qwen3-8B"}, **pools, **spec}
    metadata = {"name": "qwen", "namespace": "llm"}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": metadata, "spec": body})


def _children(deployment: PDDeployment) -> Manifests:
    """By kind and by name, the object's own name and the revision left out: `("Deployment", "prefill")`."""
    made = children(deployment, uid="7", gateway_image="pdx-gateway:1")
    strip = (f"{deployment.metadata.name}-", f"-{pairing_revision(deployment.spec)}")
    return {(m["kind"], m["metadata"]["name"].removeprefix(strip[0]).removesuffix(strip[1])): m for m in made}


def _rendered(**spec: Any) -> Manifests:
    return _children(_deployment(**spec))


def _pod(manifest: dict[str, Any]) -> dict[str, Any]:
    pod = manifest["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def _container(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = _pod(manifest)["containers"]
    assert isinstance(container, dict)
    return container


def _env(manifest: dict[str, Any]) -> dict[str, Any]:
    env = _container(manifest)["env"]
    assert len({variable["name"] for variable in env}) == len(env)
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in env}


def _mounts(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Mount path -> volume source."""
    volumes = {v["name"]: {k: v[k] for k in v if k != "name"} for v in _pod(manifest)["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in _container(manifest)["volumeMounts"]}


def test_the_children_of_an_object() -> None:
    assert list(_rendered()) == [
        ("NetworkPolicy", "engines"),
        ("NetworkPolicy", "gateway"),
        ("Service", "prefill"),
        ("Deployment", "prefill"),
        ("Service", "decode"),
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


def test_every_child_can_be_found_by_label_and_goes_with_its_owner() -> None:
    for child in _rendered().values():
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


def test_a_deployment_and_a_headless_service_select_the_pods_of_one_role_and_revision() -> None:
    deployment = _deployment()
    made = _children(deployment)
    for role in ("prefill", "decode"):
        engines, service = made["Deployment", role], made["Service", role]
        labels = {
            "pdx.dev/deployment": "qwen",
            "pdx.dev/role": role,
            "pdx.dev/revision": pairing_revision(deployment.spec),
        }
        template = engines["spec"]["template"]["metadata"]
        assert engines["spec"]["selector"]["matchLabels"] == template["labels"] == service["spec"]["selector"] == labels
        assert template["annotations"] == {"pdx.dev/connector": "NIXL", "pdx.dev/order": "PrefillFirst"}
        assert service["spec"]["clusterIP"] == "None"


def test_replicas_resources_ports_and_probes() -> None:
    made = _rendered()
    prefill, decode = made["Deployment", "prefill"], made["Deployment", "decode"]
    assert (prefill["spec"]["replicas"], decode["spec"]["replicas"]) == (2, 1)
    assert _container(prefill)["resources"] == {}
    container = _container(decode)
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    ports = {"http": ENGINE_PORT, "side-channel": 5600}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    assert {port["name"]: port["port"] for port in made["Service", "decode"]["spec"]["ports"]} == ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 1800


def test_the_pods_address_comes_before_its_users() -> None:
    made = _rendered()
    for role in ("prefill", "decode"):
        env = _container(made["Deployment", role])["env"]
        assert env[0] == {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        assert {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "$(POD_IP)"} in env[1:]


def test_what_the_user_writes_is_taken_literally() -> None:
    env = [{"name": "GREETING", "value": "$(HOME)"}, {"name": "POD_IP", "value": "mine"}]
    engines = _rendered(engine={"env": env, "args": ["--title=$(X)"]})["Deployment", "prefill"]
    assert _env(engines)["GREETING"] == "$$(HOME)"
    assert _env(engines)["POD_IP"] != "mine"
    assert "--title=$$(X)" in _container(engines)["args"]


def test_aggregated_is_one_pool_without_connector() -> None:
    made = _rendered(mode="Aggregated")
    engines = made["Deployment", "aggregated"]
    assert engines["spec"]["replicas"] == 3
    assert engines["spec"]["template"]["metadata"]["annotations"] == {}
    assert "--kv-transfer-config" not in _container(engines)["args"]
    assert [port["name"] for port in made["Service", "aggregated"]["spec"]["ports"]] == ["http"]
    assert ("PodDisruptionBudget", "aggregated") in made
    assert ("Deployment", "prefill") not in made


@pytest.mark.parametrize(("seconds", "grace"), [(60, 75), (0, 15), (3600, 3615)])
def test_the_grace_period_covers_pre_stop_and_open_requests(seconds: int, grace: int) -> None:
    made = _rendered(engine={"shutdownSeconds": seconds})
    for name in ("prefill", "decode", "gateway"):
        engines = made["Deployment", name]
        assert _pod(engines)["terminationGracePeriodSeconds"] == grace
        assert _container(engines)["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    args = _container(made["Deployment", "decode"])["args"]
    assert (args[args.index("--shutdown-timeout") + 1] if "--shutdown-timeout" in args else "0") == str(seconds)
    assert f"--shutdown-seconds={seconds}" in _container(made["Deployment", "gateway"])["args"]


def test_an_engine_pod_may_do_little() -> None:
    engines = _rendered()["Deployment", "decode"]
    pod, container = _pod(engines), _container(engines)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_everything_an_engine_writes_lies_on_a_volume() -> None:
    engines = _rendered()["Deployment", "decode"]
    mounts = _mounts(engines)
    assert mounts["/dev/shm"] == {"emptyDir": {"medium": "Memory"}}
    assert mounts["/tmp"] == {"emptyDir": {}}
    env = _env(engines)
    for name in ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert any(env[name].startswith(path) for path in mounts), name


def test_the_users_environment_wins_over_pdx_s_places() -> None:
    env = [{"name": "HF_HOME", "value": "/cache"}]
    assert _env(_rendered(engine={"env": env})["Deployment", "decode"])["HF_HOME"] == "/cache"


def test_rdma_brings_the_right_to_pin_memory() -> None:
    pool = {"resources": {"limits": {"rdma/hca_shared_devices_a": 1}}}
    made = _rendered(prefill=pool)
    assert _container(made["Deployment", "prefill"])["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert "add" not in _container(made["Deployment", "decode"])["securityContext"]["capabilities"]


def test_a_model_from_a_volume_is_mounted_read_only_and_named_by_its_path() -> None:
    source = {"persistentVolumeClaim": {"claimName": "weights", "path": "qwen/8b"}}
    engines = _rendered(model={"name": "qwen", "source": source})["Deployment", "decode"]
    assert _mounts(engines)["/models"] == {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in _container(engines)["volumeMounts"]
    assert _container(engines)["args"][:2] == ["serve", "/models/qwen/8b"]


def test_the_hubs_token_and_cache() -> None:
    model = {
        "name": "m",
        "tokenSecretRef": {"name": "hub"},
        "cache": {"persistentVolumeClaim": {"claimName": "downloads"}},
    }
    engines = _rendered(model=model)["Deployment", "prefill"]
    env = _env(engines)
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert _mounts(engines)[env["HF_HOME"]] == {"persistentVolumeClaim": {"claimName": "downloads"}}


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
    strategy = _rendered(rollout=rollout)["Deployment", "decode"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": expected}


def test_the_longest_name_gives_names_that_kubernetes_takes() -> None:
    name = "a" * 41
    body = {"model": {"name": "m"}, "mode": "Aggregated", "aggregated": {}}
    deployment = parse(
        {"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": name}, "spec": body}
    )
    assert all(len(child["metadata"]["name"]) <= 63 for child in _children(deployment).values())


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_renders(example: Path, mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(example), "--set", f"spec.mode={mode}", "--namespace", "llm"]) == 0
    out = capsys.readouterr().out
    documents = list(yaml.safe_load_all(out))
    assert len(documents) == (14 if mode is Mode.DISAGGREGATED else 11)
    assert {document["metadata"]["namespace"] for document in documents} == {"llm"}
    assert "&id" not in out, "aliases are YAML, but nobody expects them in manifests"
