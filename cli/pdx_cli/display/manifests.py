"""The objects that the operator applies for a PDDeployment, printed as YAML, JSON or names. Pure."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from pdx_api.names import ANNOTATION_INPUTS, ANNOTATION_TEMPLATE, ENGINE_CONTAINER, LABEL_ROLE
from pdx_api.render.engines import pairing_revision
from pdx_api.spec.types import PDDeployment
from pdx_cli.errors import InputError
from pdx_cli.inputs import formats
from pdx_operator.render.children import children
from pdx_operator.render.gateway import Installation
from pdx_operator.render.objects import Manifest
from pdx_operator.render.overlay import OverlayError
from pdx_operator.render.rdma import RDMA_DEVICES, check_rdma, is_engine


def in_namespace(deployment: PDDeployment, namespace: str | None) -> PDDeployment:
    """Return the object in the namespace, if it names none."""
    if not namespace or deployment.metadata.namespace is not None:
        return deployment
    metadata = deployment.metadata.model_copy(update={"namespace": namespace})
    return deployment.model_copy(update={"metadata": metadata})


def manifests_of(deployment: PDDeployment, file: Path, gateway_image: str) -> tuple[Manifest, ...]:
    """Return what the operator applies; raises InputError for a podTemplate that does not fit."""
    try:
        revision = pairing_revision(deployment.spec)
        made = children(deployment, revision, Installation(gateway_image), uid=None)
        for manifest in made:
            if is_engine(manifest):
                check_rdma(deployment.spec, manifest)
        return made
    except OverlayError as error:
        raise InputError(f"{file}: {error}.") from error


def without_devices(manifests: Iterable[Manifest]) -> Iterator[str]:
    """Yield a warning for each role whose engines get no device although their image is none for CPUs."""
    for manifest in filter(is_engine, manifests):
        pod = manifest["spec"]["template"]["spec"]
        engine = next(each for each in pod["containers"] if each["name"] == ENGINE_CONTAINER)
        resources = engine.get("resources", {})
        named = (*resources.get("limits", {}), *resources.get("requests", {}))
        if resources.get("claims") or any("/" in each and not each.startswith(RDMA_DEVICES) for each in named):
            continue
        image = str(engine["image"])
        if "cpu" not in image.lower():
            field = f"spec.{manifest['metadata']['labels'][LABEL_ROLE]}.resources"
            yield (
                f"{manifest['metadata']['name']}: {field} requests no device, and {image} is no image for CPUs: "
                f"its engines will probably fail while they load. Write for example {field}: "
                "{limits: {nvidia.com/gpu: 1}}, or name a CPU image in spec.engine.image."
            )


def printed(manifests: Iterable[Manifest], form: str, encoding: str) -> str:
    """Return the manifests as yaml, json or name, complete in the encoding."""
    if form == "json":
        return to_json(manifests, encoding)
    return to_yaml(manifests) if form == "yaml" else to_names(manifests)


def to_yaml(manifests: Iterable[Manifest]) -> str:
    """Return the manifests as one text of several YAML documents, in ASCII."""
    printed = (_without_records(manifest) for manifest in manifests)
    return yaml.dump_all(printed, Dumper=_Dumper, sort_keys=False, width=120)


def to_json(manifests: Iterable[Manifest], encoding: str) -> str:
    """Return the manifests as one List, as `kubectl get -o json` prints several objects."""
    items = [_without_records(manifest) for manifest in manifests]
    return formats.as_json({"apiVersion": "v1", "kind": "List", "items": items}, encoding, indent=2)


def to_names(manifests: Iterable[Manifest]) -> str:
    """Return one line for each manifest, as `kubectl get -o name` prints it: `deployment.apps/qwen-gateway`."""
    return "".join(f"{_resource(manifest)}/{manifest['metadata']['name']}\n" for manifest in manifests)


def _resource(manifest: Manifest) -> str:
    group = str(manifest["apiVersion"]).rpartition("/")[0]
    kind = str(manifest["kind"]).lower()
    return f"{kind}.{group}" if group else kind


_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, in a fifth of the time


class _Dumper(_Base):  # type: ignore[misc]
    """Writes no aliases: they are valid YAML, but unusual in manifests."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _without_records(manifest: Manifest) -> Manifest:
    """Remove the annotations in which the operator records what it applied."""
    annotations = manifest["metadata"].get("annotations", {})
    kept = {key: value for key, value in annotations.items() if key not in (ANNOTATION_INPUTS, ANNOTATION_TEMPLATE)}
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "annotations"}
    return {**manifest, "metadata": {**metadata, **({"annotations": kept} if kept else {})}}
