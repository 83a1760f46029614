"""A PDDeployment, its manifests, and parts of them for tests."""

from typing import Any

from pdx_api.render.engines import pairing_revision
from pdx_api.spec.parse import parse
from pdx_api.spec.types import PDDeployment
from pdx_operator.render.children import children
from pdx_operator.render.gateway import Installation

Manifest = dict[str, Any]
Manifests = dict[tuple[str, str], dict[str, Any]]


def deployment_of(**spec: Any) -> PDDeployment:
    pools = {"prefill": {"replicas": 2}, "decode": {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}}}
    body = {"model": {"name": "Qwen/Qwen3-8B"}, **pools, **spec}
    metadata = {"name": "qwen", "namespace": "llm"}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": metadata, "spec": body})


def manifests_of(deployment: PDDeployment, uid: str | None = "7", **options: Any) -> tuple[Manifest, ...]:
    """All children of a PDDeployment, in the revision of its spec."""
    installation = Installation(**{"gateway_image": "pdx-gateway:1", **options})
    return children(deployment, pairing_revision(deployment.spec), installation, uid=uid)


def children_of(deployment: PDDeployment) -> Manifests:
    """By kind and name, without the object's name and the revision: `("Deployment", "prefill")`."""
    created = manifests_of(deployment)
    strip = (f"{deployment.metadata.name}-", f"-{pairing_revision(deployment.spec)}")
    return {(m["kind"], m["metadata"]["name"].removeprefix(strip[0]).removesuffix(strip[1])): m for m in created}


def rendered(**spec: Any) -> Manifests:
    return children_of(deployment_of(**spec))


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    pod = manifest["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(manifest)["containers"]
    assert isinstance(container, dict)
    return container


def env_of(manifest: dict[str, Any]) -> dict[str, Any]:
    env = container_of(manifest)["env"]
    assert len({variable["name"] for variable in env}) == len(env)
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in env}


def mounts_of(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Mount path -> volume source."""
    volumes = {v["name"]: {k: v[k] for k in v if k != "name"} for v in pod_of(manifest)["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container_of(manifest)["volumeMounts"]}
