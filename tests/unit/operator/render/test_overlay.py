"""The `podTemplate` overlay: how it merges, and what it may not change."""

import copy
from typing import Any

import pytest

from pdx_operator.render.overlay import OverlayError, overlaid

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"pdx.dev/role": "decode"}, "annotations": {"pdx.dev/order": "Concurrent"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "image": "vllm:1",
                "command": ["vllm"],
                "args": ["serve", "m"],
                "env": [
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "HOME", "value": "/home/vllm"},
                ],
                "ports": [{"name": "http", "containerPort": 8000}],
                "resources": {"limits": {"cpu": 1}},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "securityContext": {"runAsUser": 2000, "runAsNonRoot": True},
        "topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname", "maxSkew": 1}],
    },
}


def _overlaid(overlay: dict[str, Any]) -> dict[str, Any]:
    return overlaid(TEMPLATE, overlay, container="engine", where="spec.decode.podTemplate")


def _expected(change: Any) -> dict[str, Any]:
    template = copy.deepcopy(TEMPLATE)
    change(template["spec"], template["spec"]["containers"][0])
    return template


MERGES = [
    pytest.param({}, lambda pod, engine: None, id="nothing"),
    pytest.param(
        {"nodeSelector": {"gpu": "h200"}, "securityContext": {"runAsGroup": 1}},
        lambda pod, engine: (
            pod.update(nodeSelector={"gpu": "h200"}),
            pod["securityContext"].update(runAsGroup=1),
        ),
        id="maps merge deeply",
    ),
    pytest.param(
        {"securityContext": {"runAsUser": None}, "hostname": None},
        lambda pod, engine: pod["securityContext"].pop("runAsUser"),
        id="null deletes",
    ),
    pytest.param(
        {"containers": [{"name": "engine", "image": "vllm:2"}, {"name": "exporter", "image": "e"}]},
        lambda pod, engine: (
            engine.update(image="vllm:2"),
            pod["containers"].append({"name": "exporter", "image": "e"}),
        ),
        id="containers merge by name, new ones follow",
    ),
    pytest.param(
        {"containers": [{"name": "engine", "env": [{"name": "HOME", "value": "/x"}, {"name": "A", "value": "b"}]}]},
        lambda pod, engine: (
            engine["env"][1].update(value="/x"),
            engine["env"].append({"name": "A", "value": "b"}),
        ),
        id="variables merge by name",
    ),
    pytest.param(
        {"containers": [{"name": "engine", "volumeMounts": [{"mountPath": "/dev/shm", "name": "big"}]}]},
        lambda pod, engine: engine["volumeMounts"][0].update(name="big"),
        id="mounts merge by path",
    ),
    pytest.param(
        {"containers": [{"name": "engine", "env": [{"name": "HOME", "$patch": "delete"}]}]},
        lambda pod, engine: engine["env"].pop(1),
        id="delete drops an element",
    ),
    pytest.param(
        {"containers": [{"name": "engine", "resources": {"$patch": "replace", "limits": {"nvidia.com/gpu": 1}}}]},
        lambda pod, engine: engine.update(resources={"limits": {"nvidia.com/gpu": 1}}),
        id="replace takes a map whole",
    ),
    pytest.param(
        {"containers": [{"name": "engine", "resources": {"$patch": "delete"}}]},
        lambda pod, engine: engine.update(resources={}),
        id="delete empties a map",
    ),
    pytest.param(
        {"topologySpreadConstraints": [{"$patch": "replace"}, {"topologyKey": "zone", "maxSkew": 3}]},
        lambda pod, engine: pod.update(topologySpreadConstraints=[{"topologyKey": "zone", "maxSkew": 3}]),
        id="replace takes a list whole",
    ),
    pytest.param(
        {"containers": [{"name": "engine", "securityContext": {"capabilities": {"drop": ["NET_RAW"]}}}]},
        lambda pod, engine: engine["securityContext"]["capabilities"].update(drop=["NET_RAW"]),
        id="a list without names is replaced",
    ),
    pytest.param(
        {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]},
        lambda pod, engine: pod["volumes"][0]["emptyDir"].update(sizeLimit="1Gi"),
        id="a volume of the same kind merges",
    ),
    pytest.param(
        {"volumes": [{"name": "shm", "hostPath": {"path": "/dev/shm"}}]},
        lambda pod, engine: pod.update(volumes=[{"name": "shm", "hostPath": {"path": "/dev/shm"}}]),
        id="a volume of another kind takes its place",
    ),
    pytest.param(
        {"initContainers": [{"name": "fetch", "image": "i", "env": [{"name": "X", "value": None}]}]},
        lambda pod, engine: pod.update(
            initContainers=[{"name": "fetch", "image": "i", "env": [{"name": "X"}]}],
        ),
        id="what is new loses its nulls",
    ),
]
"""Overlays of a pod spec, and their changes of `TEMPLATE`."""


@pytest.mark.parametrize(("spec", "change"), MERGES)
def test_an_overlay_merges_as_kubernetes_does(spec: dict[str, Any], change: Any) -> None:
    before = copy.deepcopy(TEMPLATE)
    assert _overlaid({"spec": spec}) == _expected(change)
    assert before == TEMPLATE, "the template itself stays as it is"


def test_labels_and_annotations_are_added() -> None:
    merged = _overlaid({"metadata": {"labels": {"team": "search"}, "annotations": {"a": "b"}}})
    assert merged["metadata"] == {
        "labels": {"pdx.dev/role": "decode", "team": "search"},
        "annotations": {"pdx.dev/order": "Concurrent", "a": "b"},
    }


def _engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


@pytest.mark.parametrize(
    ("overlay", "sentence"),
    [
        ({"status": {}}, ".status does not exist; an overlay holds metadata and spec"),
        ({"spec": []}, ".spec is []; write a mapping"),
        (
            {"metadata": {"name": "x"}},
            ".metadata.name cannot be set; an overlay's metadata holds labels and annotations",
        ),
        (
            {"metadata": {"labels": {"pdx.dev/role": "prefill"}}},
            ".metadata.labels may not change pdx.dev/role: PDX finds its pods by it",
        ),
        (
            {"metadata": {"labels": {"pdx.dev/mine": "1"}}},
            ".metadata.labels may not change pdx.dev/mine: PDX finds its pods by it",
        ),
        (
            {"metadata": {"annotations": {"$patch": "replace", "a": "b"}}},
            ".metadata.annotations may not change pdx.dev/order: PDX finds its pods by it",
        ),
        (
            _engine(command=["sh"]),
            ".spec.containers[engine].command may not change: PDX writes it from the other fields",
        ),
        (_engine(args=["serve"]), ".spec.containers[engine].args may not change: PDX writes it from the other fields"),
        (_engine(args=None), ".spec.containers[engine].args may not change: PDX writes it from the other fields"),
        (
            _engine(ports=[{"containerPort": 8000, "name": "web"}]),
            ".ports may not change http: gateway and engines find",
        ),
        (
            _engine(ports=[{"$patch": "replace"}, {"containerPort": 9000, "name": "http"}]),
            ".ports may not change http: gateway and engines find",
        ),
        (_engine(env=[{"name": "POD_IP", "$patch": "delete"}]), ".env may not change POD_IP: other variables hold its"),
        (_engine(env=[{"name": "POD_IP", "value": "1.2.3.4"}]), ".env may not change POD_IP: other variables hold its"),
        ({"spec": {"containers": [{"name": "engine", "$patch": "delete"}]}}, "[engine] may not be removed: it is what"),
        ({"spec": {"containers": [{"$patch": "replace"}]}}, ".spec.containers[engine] may not be removed: it is what"),
        ({"spec": None}, ".spec.containers[engine] may not be removed: it is what the pod is for"),
        ({"spec": {"containers": [{"image": "x"}]}}, ".spec.containers[0] has no name, which selects the element"),
        ({"spec": {"volumes": ["x"]}}, ".spec.volumes[0] is 'x'; write a mapping with name"),
        (
            {"spec": {"volumes": [{"name": "shm", "$patch": "replace"}]}},
            ".spec.volumes[0] would replace the whole list; write - $patch: replace as an element of its own",
        ),
        ({"spec": {"securityContext": {"$patch": "drop"}}}, ".spec.securityContext.$patch is 'drop'; write delete or"),
        ({"spec": {"$retainKeys": ["containers"]}}, ".spec.$retainKeys is not supported; the only directive is $patch"),
    ],
)
def test_an_overlay_that_cannot_be_applied_is_refused_with_a_sentence(overlay: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OverlayError) as refused:
        _overlaid(overlay)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("spec.decode.podTemplate.")


SIDECAR = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "initContainers": [{"name": "lmcache", "args": ["server"]}]}}


def test_a_sidecar_is_changed_by_its_name() -> None:
    mine: list[dict[str, Any]] = [{"name": "lmcache", "resources": {"limits": {"memory": "9Gi"}}}, {"name": "fetch"}]
    merged = overlaid(SIDECAR, {"spec": {"initContainers": mine}}, container="engine", where="it")
    assert merged["spec"]["initContainers"] == [{**mine[0], "args": ["server"]}, {"name": "fetch"}]


@pytest.mark.parametrize(
    ("containers", "sentence"),
    [
        ([{"name": "lmcache", "args": []}], "it.spec.initContainers[lmcache].args may not change: PDX writes it"),
        ([{"name": "lmcache", "$patch": "delete"}], "[lmcache] may not be removed: the engine needs this sidecar"),
    ],
)
def test_a_sidecar_cannot_be_removed(containers: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(OverlayError) as refused:
        overlaid(SIDECAR, {"spec": {"initContainers": containers}}, container="engine", where="it")
    assert sentence in str(refused.value)
