"""The skew table of docs/operator.md, cell by cell: PDX 0.1.0, this version, and the version after it."""

import copy
from typing import Any

import pytest
import yaml

from pdx_api.names import Role
from pdx_api.spec.schema import object_schema
from pdx_operator.kube.crd import gaps
from pdx_proxy.__main__ import create_parser
from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.discovery.pods import read_pod
from tests.component.skew.record import CRD, FOLDER
from tests.component.skew.support import (
    Body,
    arguments_of_gateway,
    body_of,
    entries,
    next_schema,
    planned,
    pods_of,
    previous,
    settled,
    use_next_wiring,
    with_defaults,
)

PLAIN: Body = {
    "model": {"name": "x"},
    # The API server stores the default of the CRD with which an object was created.
    "engine": {"shutdownSeconds": 60},
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
}
HALF: Body = {**PLAIN, "decode": {"replicas": 1, "resources": {"limits": {"rdma/hca": 1}}}}
"""0.1.0 lets engines have an RDMA device without the right to lock memory for it. New ones are refused."""
RICH: Body = {
    **PLAIN,
    "kvTransfer": {"connector": "LMCache", "poolSize": "8Gi"},
    "engine": {"env": [{"name": "A", "value": "b"}], "args": ["--enforce-eager"], "shutdownSeconds": 30},
    "prefill": {
        "replicas": 2,
        "resources": {"limits": {"nvidia.com/gpu": 1, "rdma/hca": 1}},
        "podTemplate": {
            "spec": {
                "nodeSelector": {"a": "b"},
                "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
                "containers": [
                    {"name": "engine", "image": "i:1", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
                ],
            }
        },
    },
}
SPECS = [pytest.param(PLAIN, id="plain"), pytest.param(RICH, id="rich")]


def _manifests(spec: Body) -> list[Body]:
    return [apply.manifest for apply in planned(spec).applies]


def _replaced_pods(applies: list[Body], live: dict[Any, Body]) -> list[str]:
    """Deployments of engines and side services whose pods a plan replaces, or that it adds."""
    found = []
    for manifest in applies:
        name, labels = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        if manifest["kind"] == "Deployment" and labels.get("pdx.dev/role") != "gateway":
            before = next((b for key, b in live.items() if (key.kind, key.name) == ("Deployment", name)), None)
            if before is None or before["spec"]["template"] != manifest["spec"]["template"]:
                found.append(name)
    return found


def test_the_record_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000


@pytest.mark.parametrize("spec", [*SPECS, pytest.param(HALF, id="half of RDMA")])
def test_an_upgrade_from_0_1_0_replaces_no_engine_and_a_rollback_neither(spec: Body) -> None:
    (before,) = previous(("decide", body_of(spec), []))
    live = settled(before["applies"])
    step = planned(spec, live)
    assert not step.invalid
    assert _replaced_pods([apply.manifest for apply in step.applies], live) == []
    assert not [delete for delete in step.deletes if delete.key.kind == "Deployment"]
    upgraded = {**live, **settled([apply.manifest for apply in step.applies])}
    for delete in step.deletes:
        del upgraded[delete.key]
    assert not planned(spec, upgraded).has_writes, "an upgrade settles"
    (rolled_back,) = previous(("decide", body_of(spec), entries(upgraded)))
    assert (rolled_back["invalid"], _replaced_pods(rolled_back["applies"], upgraded)) == ("", [])
    assert not [key for key in rolled_back["deletes"] if key[0] == "Deployment"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_later_version_and_back_replace_no_engine(spec: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    live = settled(_manifests(spec))
    with monkeypatch.context() as later:
        use_next_wiring(later)
        assert not planned(spec, live).has_writes
        newer = settled(_manifests(spec))
        assert newer.keys() != live.keys(), "its own engines have another revision"
    assert not planned(spec, newer).has_writes, "this version leaves the engines of the later one"


NEW_FIELDS = [
    ".engine.drainSeconds",
    ".kvTransfer.verification",
    ".routing.retries.minRetries",
    ".routing.queue.maxInFlightPerPrefill",
    ".routing.queue.maxBufferedBytes",
    ".routing.outlierDetection",
    ".slo",
    ".gateway.limits.trustedProxies",
    ".observability.scrapeFrom[].namespaceSelector",
    ".observability.scrapeFrom[].podSelector",
    *(f".{role}.parallelism.{name}" for role in Role for name in ("pipeline", "data", "expert")),
    *(f".{part}.env[].valueFrom" for part in ("engine", *Role)),
    ".annotations",
    ".engine.podTemplate",
    ".engine.rdma",
    ".engine.startupSeconds",
    ".gateway.cors",
    ".gateway.enabled",
    ".gateway.httpRoute",
    ".gateway.streamKeepAliveSeconds",
    ".gateway.tls",
    ".labels",
    ".model.adapters",
    ".model.lora",
    ".observability.tracing",
    ".paused",
]
"""Fields of the spec that 0.1.0 does not know."""
NEW_IN_STATUS = [
    ".status.operator",
    ".status.roles",
    ".status.gateway.desiredReplicas",
    ".status.gateway.readyReplicas",
    ".status.conditions[].type Available",
]
"""What 0.1.0 does not have in a status."""


def test_this_operator_reports_a_crd_of_0_1_0() -> None:
    crd = yaml.safe_load(CRD.read_text())
    served = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert sorted(gaps(served, object_schema(former=False))) == sorted(
        [*NEW_IN_STATUS, *(f".spec{name}" for name in NEW_FIELDS)]
    )


def test_a_later_operator_reports_the_crd_of_this_version() -> None:
    assert list(gaps(object_schema(), next_schema())) == [".spec.gateway.compression", ".status.newer"]
    assert list(gaps(next_schema(), object_schema())) == []


def test_this_operator_works_with_a_later_crd() -> None:
    live = settled(_manifests(PLAIN))
    defaulted = copy.deepcopy(PLAIN) | {"gateway": {"compression": True}}
    step = planned(defaulted, live)
    assert (step.invalid, step.has_writes) == ("", False)


def test_the_operator_of_0_1_0_works_with_the_crd_of_this_version() -> None:
    """The API server adds no field to an object that this operator refuses. It refuses one that a user sets."""
    (older,) = previous(("schema",))
    schema = object_schema()["properties"]["spec"]
    assert sorted(gaps(older["properties"]["spec"], schema)) == sorted(NEW_FIELDS)
    stored = with_defaults(PLAIN, schema)
    assert stored["routing"]["queue"]["maxRequests"], "defaults are added"
    used = copy.deepcopy(stored)
    used["routing"]["outlierDetection"] = {"stalledSeconds": 60}
    accepted, refused = previous(("decide", body_of(stored), []), ("decide", body_of(used), []))
    assert accepted["invalid"] == ""
    assert "outlierDetection" in refused["invalid"]


@pytest.mark.parametrize("spec", SPECS)
def test_gateways_and_engines_of_neighbouring_versions_understand_each_other(spec: Body) -> None:
    ours = _manifests(spec)
    (before,) = previous(("decide", body_of(spec), []))
    theirs = before["applies"]
    pods = pods_of(ours)
    read = previous(*(("read_pod", pod) for pod in pods), ("flags", arguments_of_gateway(ours)))
    for pod, found in zip(pods, read[:-1], strict=True):
        labels, notes = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert (found["role"], found["revision"]) == (labels["pdx.dev/role"], labels["pdx.dev/revision"])
        assert (found["connector"], found["order"]) == (notes["pdx.dev/connector"], notes["pdx.dev/order"])
    assert read[-1] == "", "a gateway of 0.1.0 accepts the flags of this operator"
    for pod in pods_of(theirs):
        endpoint = read_pod(pod)
        assert isinstance(endpoint, EndpointSpec), endpoint
        assert endpoint.revision == pod["metadata"]["labels"]["pdx.dev/revision"]
    create_parser().parse_args(arguments_of_gateway(theirs))


def test_a_pinned_gateway_of_0_1_0_refuses_settings_whose_flags_are_renamed() -> None:
    renamed = {**PLAIN, "kvTransfer": {"verification": {"periodSeconds": 20}}}
    (refusal,) = previous(("flags", arguments_of_gateway(_manifests(renamed))))
    assert refusal
