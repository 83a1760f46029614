"""install.yaml and crds.yaml of a release: `kubectl apply` gives the objects that the packaged chart gives."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_cluster.app.cluster import Cluster
from scripts.release.artifacts import sha256
from scripts.release.manifests import crds, install_manifest, package_chart
from scripts.release.names import read
from tests.charts.chart import CRD, NAMESPACE, ROOT, Chart

EPOCH = 1_700_000_000
VERSION = read(ROOT).version
SERVERS = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")
"""Fields of metadata that the API server writes."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def package(chart: Chart, tmp_path: Path) -> Path:
    """The packaged chart."""
    return package_chart(chart.helm, tmp_path, EPOCH)


@pytest.fixture
def manifest(chart: Chart, package: Path) -> str:
    """The text of install.yaml."""
    return install_manifest(chart.helm, package, VERSION)


def test_two_packages_are_the_same_bytes(chart: Chart, package: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert package.name == f"pdx-{VERSION}.tgz"
    assert sha256(package_chart(chart.helm, tmp_path / "again", EPOCH)) == sha256(package)


def test_the_manifest_has_the_namespace_and_no_test(manifest: str) -> None:
    bodies = [body for body in yaml.safe_load_all(manifest) if body]
    assert (bodies[0]["kind"], bodies[0]["metadata"]["name"]) == ("Namespace", NAMESPACE)
    assert "Pod" not in {body["kind"] for body in bodies}
    assert [yaml.safe_load(crds())] == [_as_generated(b) for b in bodies if b["kind"] == "CustomResourceDefinition"]


def _as_generated(crd: dict[str, Any]) -> dict[str, Any]:
    return {**crd, "metadata": {"name": crd["metadata"]["name"]}}


def test_kubectl_gives_the_same_objects_as_the_chart(cluster: Cluster, package: Path, manifest: str) -> None:
    bodies = [body for body in yaml.safe_load_all(manifest) if body and body["kind"] != "Namespace"]
    cluster.helm("install", "pdx", str(package), "--namespace", NAMESPACE)
    by_helm = [_live(cluster, body) for body in bodies]
    listed = yaml.safe_load_all(cluster.helm("get", "manifest", "pdx", "--namespace", NAMESPACE))
    assert {_key(body) for body in listed if body} == {_key(body) for body in bodies}
    cluster.helm("uninstall", "pdx", "--namespace", NAMESPACE, "--wait")
    cluster.kubectl("delete", CRD)

    cluster.kubectl("apply", "--server-side", "--filename=-", stdin=manifest)

    assert [_live(cluster, body) for body in bodies] == by_helm
    kept = [body for body in bodies if body["kind"] != "CustomResourceDefinition"]
    cluster.kubectl("delete", "--filename=-", stdin=yaml.safe_dump_all(kept))


def _key(body: dict[str, Any]) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


def _live(cluster: Cluster, body: dict[str, Any]) -> dict[str, Any]:
    """An object as the API server has it, without what differs between any two objects."""
    kind, name = _key(body)
    found: dict[str, Any] = json.loads(cluster.kubectl("get", kind, name, "--namespace", NAMESPACE, "--output=json"))
    metadata = {key: value for key, value in found["metadata"].items() if key not in SERVERS}
    annotations = {key: each for key, each in metadata.pop("annotations", {}).items() if "helm.sh/release-" not in key}
    found.pop("status", None)
    return {**found, "metadata": {**metadata, "annotations": annotations}}
