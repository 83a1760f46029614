"""The engines as Kubernetes objects."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_api.engines import pairing_revision
from pdx_api.names import ENGINE_PORT, Mode
from pdx_api.parse import parse
from pdx_api.types import PDDeployment
from pdx_cli.main import main
from pdx_operator.manifests import engine_manifests

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def _deployment(**spec: Any) -> PDDeployment:
    pools = {"prefill": {"replicas": 2}, "decode": {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}}}
    body = {"model": {"name": "Qwen/Qwen3-8B"}, **pools, **spec}
    metadata = {"name": "qwen", "namespace": "llm"}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": metadata, "spec": body})


def _container(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def test_a_deployment_and_a_headless_service_for_each_role() -> None:
    deployment = _deployment()
    revision = pairing_revision(deployment.spec)
    manifests = engine_manifests(deployment)
    assert [(m["kind"], m["metadata"]["name"]) for m in manifests] == [
        ("Deployment", f"qwen-prefill-{revision}"),
        ("Service", f"qwen-prefill-{revision}"),
        ("Deployment", f"qwen-decode-{revision}"),
        ("Service", f"qwen-decode-{revision}"),
    ]
    for engines, service in zip(manifests[::2], manifests[1::2], strict=True):
        template = engines["spec"]["template"]["metadata"]
        assert engines["spec"]["selector"]["matchLabels"] == template["labels"] == service["spec"]["selector"]
        assert template["annotations"] == {"pdx.dev/connector": "NIXL", "pdx.dev/order": "PrefillFirst"}
        assert service["spec"]["clusterIP"] == "None"
        assert {m["metadata"]["namespace"] for m in (engines, service)} == {"llm"}


def test_replicas_resources_ports_and_probes() -> None:
    prefill, _, decode, service = engine_manifests(_deployment())
    assert (prefill["spec"]["replicas"], decode["spec"]["replicas"]) == (2, 1)
    assert _container(prefill)["resources"] == {}
    container = _container(decode)
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    ports = {"http": ENGINE_PORT, "side-channel": 5600}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}


def test_the_pods_address_comes_before_its_users() -> None:
    for manifest in engine_manifests(_deployment())[::2]:
        env = _container(manifest)["env"]
        assert env[0] == {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        assert {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "$(POD_IP)"} in env[1:]
        names = [variable["name"] for variable in env]
        assert len(names) == len(set(names))


def test_what_the_user_writes_is_taken_literally() -> None:
    env = [{"name": "GREETING", "value": "$(HOME)"}, {"name": "POD_IP", "value": "mine"}]
    container = _container(engine_manifests(_deployment(engine={"env": env, "args": ["--title=$(X)"]}))[0])
    assert {"name": "GREETING", "value": "$$(HOME)"} in container["env"]
    assert {"name": "POD_IP", "value": "mine"} not in container["env"]
    assert "--title=$$(X)" in container["args"]


def test_aggregated_is_one_pool_without_connector() -> None:
    engines, service = engine_manifests(_deployment(mode="Aggregated"))
    assert engines["spec"]["replicas"] == 3
    assert engines["metadata"]["annotations"] == {}
    assert "--kv-transfer-config" not in _container(engines)["args"]
    assert [port["name"] for port in service["spec"]["ports"]] == ["http"]


def test_the_longest_name_gives_names_that_kubernetes_takes() -> None:
    name = "a" * 41
    body = {"model": {"name": "m"}, "mode": "Aggregated", "aggregated": {}}
    deployment = parse(
        {"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": name}, "spec": body}
    )
    assert all(len(manifest["metadata"]["name"]) <= 63 for manifest in engine_manifests(deployment))


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_renders(example: Path, mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(example), "--set", f"spec.mode={mode}"]) == 0
    out = capsys.readouterr().out
    documents = list(yaml.safe_load_all(out))
    assert len(documents) == (4 if mode is Mode.DISAGGREGATED else 2)
    assert "&id" not in out, "aliases are YAML, but nobody expects them in manifests"
