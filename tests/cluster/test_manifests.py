"""What the operator renders, before a real API server: accepted to the letter, and read back without a difference."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_api.render.engines import pairing_revision
from pdx_api.spec.parse import parse
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from pdx_operator.plan.drift import differs
from pdx_operator.plan.pinned_template import pinned, scale_only, with_hash
from pdx_operator.render.children import children
from pdx_operator.render.gateway import Installation
from pdx_operator.render.merge_keys import POD_TEMPLATE, UNIONS
from pdx_operator.render.overlay import overlaid
from tests.unit.operator.render.test_golden import SPECS
from tests.unit.operator.render.test_overlay import MERGES, TEMPLATE

Manifest = dict[str, Any]


def _stamped_children(spec: Path, namespace: str) -> list[Manifest]:
    body = yaml.safe_load(spec.read_text())
    body["metadata"]["namespace"] = namespace
    # No owner: there is none here, and Kubernetes collects what has lost its owner.
    deployment = parse(body)
    made = children(deployment, pairing_revision(deployment.spec), Installation("pdx-gateway:1"), uid=None)
    return [with_hash(child) for child in made]


def _list_of(manifests: list[Manifest]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})


def _apply(cluster: Cluster, manifests: list[Manifest]) -> list[Manifest]:
    """Apply as the operator does, unknown fields refused; what the API server made of it, in the same order."""
    flags = ("--server-side", "--field-manager=pdx-operator", "--validate=strict", "-o", "json")
    answered = json.loads(cluster.kubectl("apply", *flags, "-f", "-", stdin=_list_of(manifests)))
    live = answered["items"] if answered["kind"] == "List" else [answered]
    assert len(live) == len(manifests)
    return live


def _engines(manifests: list[Manifest]) -> list[Manifest]:
    return [m for m in manifests if m["kind"] == "Deployment" and "pdx.dev/revision" in m["metadata"]["labels"]]


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.name.split(".")[0])
def test_what_is_applied_is_accepted_and_read_back_without_a_difference(
    spec: Path, control_plane: Cluster, namespace: str
) -> None:
    desired = _stamped_children(spec, namespace)
    live = _apply(control_plane, desired)
    assert [differs(manifest, found) for manifest, found in zip(desired, live, strict=True)] == [None] * len(desired)
    again = _apply(control_plane, [pinned(m, found) for m, found in zip(desired, live, strict=True)])
    generations = [[found["metadata"].get("generation") for found in round_] for round_ in (live, again)]
    assert generations[0] == generations[1]


def test_an_older_revision_is_rescaled_without_touching_its_pods(control_plane: Cluster, namespace: str) -> None:
    minimal = next(spec for spec in SPECS if spec.name.startswith("minimal"))
    desired = _engines(_stamped_children(minimal, namespace))
    live = _apply(control_plane, desired)
    for found in live:
        name = found["metadata"]["name"]
        control_plane.kubectl("-n", namespace, "wait", f"deployment/{name}", "--for=jsonpath={.status.replicas}")
    live = json.loads(control_plane.kubectl("get", "-f", "-", "-o", "json", stdin=_list_of(desired)))["items"]
    less = [with_hash(scale_only(found, 0)) for found in live]
    after = _apply(control_plane, less)
    for before, manifest, found in zip(live, less, after, strict=True):
        assert found["spec"] == {**before["spec"], "replicas": 0}
        assert found["metadata"]["labels"] == before["metadata"]["labels"]
        assert differs(manifest, found) is None


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ({"spec": {"replicas": 7}}, "spec.replicas"),
        (
            {"spec": {"template": {"spec": {"containers": [{"name": "engine", "image": "other"}]}}}},
            "spec.template.spec.containers[engine].image",
        ),
        (
            {"spec": {"template": {"spec": {"automountServiceAccountToken": None}}}},
            "spec.template.spec.automountServiceAccountToken",
        ),
        (
            {
                "spec": {
                    "template": {
                        "spec": {
                            "volumes": [{"name": "shm", "$patch": "delete"}],
                            "containers": [
                                {"name": "engine", "volumeMounts": [{"mountPath": "/dev/shm", "$patch": "delete"}]}
                            ],
                        }
                    }
                }
            },
            "spec.template.spec.containers[engine].volumeMounts[/dev/shm]",
        ),
    ],
)
def test_drift_is_seen_and_put_right(patch: Manifest, path: str, control_plane: Cluster, namespace: str) -> None:
    minimal = next(spec for spec in SPECS if spec.name.startswith("minimal"))
    engines = _engines(_stamped_children(minimal, namespace))[0]
    _apply(control_plane, [engines])
    arguments = ("-n", namespace, "patch", "deployment", engines["metadata"]["name"], "-o", "json", "--type=strategic")
    drifted = json.loads(control_plane.kubectl(*arguments, "-p", json.dumps(patch)))
    assert differs(engines, drifted) == path
    flags = ("--server-side", "--force-conflicts", "--field-manager=pdx-operator", "-o", "json")
    repaired = json.loads(control_plane.kubectl("apply", *flags, "-f", "-", stdin=json.dumps(engines)))
    assert differs(engines, repaired) is None


@pytest.mark.parametrize("name", ["minimal", "pvc", "aggregated"])  # RDMA needs a capability
def test_pods_satisfy_the_restricted_pod_security_standard(name: str, control_plane: Cluster, namespace: str) -> None:
    spec = next(spec for spec in SPECS if spec.name.startswith(name))
    made = _stamped_children(spec, namespace)
    _apply(control_plane, [manifest for manifest in made if manifest["kind"] == "ServiceAccount"])
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    refusals = []
    for template in (manifest["spec"]["template"] for manifest in made if manifest["kind"] == "Deployment"):
        metadata = {**template["metadata"], "name": "x", "namespace": namespace}
        # A class of runtime is looked up for pods, and there is none here.
        pod_spec = {**template["spec"], "runtimeClassName": None}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}
        try:
            control_plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
        except ClusterError as error:
            refusals.append(str(error))
    assert not refusals


@pytest.mark.parametrize(("spec", "change"), MERGES)
def test_an_overlay_merges_as_kubectl_patches(spec: Manifest, change: object, control_plane: Cluster) -> None:
    merged = overlaid(TEMPLATE, {"spec": spec}, container="engine", where="podTemplate")
    ours = _patched(control_plane, merged, {})
    if "volumes" in spec:
        # What `kubectl apply` adds to a patch of a volume.
        spec = {**spec, "volumes": [{**volume, "$retainKeys": list(volume)} for volume in spec["volumes"]]}
    assert _patched(control_plane, TEMPLATE, {"spec": spec}) == ours


def _patched(cluster: Cluster, template: Manifest, patch: Manifest) -> Manifest:
    """A pod template that kubectl has patched, in its own spelling, without a request to the API server."""
    selector = {"matchLabels": template["metadata"]["labels"]}
    metadata, spec = {"name": "x"}, {"selector": selector, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    change = json.dumps({"spec": {"template": patch}})
    arguments = ("patch", "--local", "-f", "-", "--type=strategic", "-p", change, "-o", "json")
    found: Manifest = json.loads(cluster.kubectl(*arguments, stdin=json.dumps(body)))["spec"]["template"]
    return found


def test_lists_of_named_things_are_those_that_the_api_server_merges_by_name(control_plane: Cluster) -> None:
    definitions = json.loads(control_plane.get("/openapi/v2"))["definitions"]
    fields = list(_fields(definitions, "io.k8s.api.core.v1.PodTemplateSpec", set()))
    lists = {(field, schema.get("x-kubernetes-patch-merge-key")) for field, schema in fields if "items" in schema}
    # Of a pod's metadata an overlay holds labels and annotations only.
    named = {(field, key) for field, key in lists if key and field != "ownerReferences"}
    assert named == set(POD_TEMPLATE.items())
    assert not [field for field, key in lists if key is None and field in POD_TEMPLATE], "a name stands for one list"
    assert {f for f, schema in fields if "retainKeys" in schema.get("x-kubernetes-patch-strategy", "")} == UNIONS


def _fields(definitions: Manifest, name: str, seen: set[str]) -> Iterator[tuple[str, Manifest]]:
    """Every field below a definition, with its schema."""
    if name in seen:
        return
    seen.add(name)
    for field, schema in definitions[name].get("properties", {}).items():
        yield field, schema
        below = schema.get("items", schema).get("$ref")
        if below:
            yield from _fields(definitions, below.removeprefix("#/definitions/"), seen)
