"""The skew table of docs/operator/operators.md, cell by cell: the recorded version of PDX, and the version after it."""

from typing import Any

import pytest

from pdx_operator.kube.crd import gaps
from pdx_proxy.__main__ import create_parser
from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.discovery.pods import read_pod
from tests.component.skew.record import FOLDER
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

PLAIN: Body = {"model": {"name": "x"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
RICH: Body = {
    **PLAIN,
    "kvTransfer": {"connector": "LMCache", "poolSize": "8Gi"},
    "engine": {"env": [{"name": "A", "value": "b"}], "args": ["--enforce-eager"], "drainSeconds": 30},
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


@pytest.fixture(params=[False, True], ids=["equal wiring", "next wiring"])
def _next_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        use_next_wiring(monkeypatch)


@pytest.mark.usefixtures("_next_version")
@pytest.mark.parametrize("spec", SPECS)
def test_an_upgrade_replaces_no_engine_and_a_rollback_neither(spec: Body) -> None:
    (before,) = previous(("plan", body_of(spec), []))
    live = settled(before["applies"])
    step = planned(spec, live)
    assert not step.invalid
    assert _replaced_pods([apply.manifest for apply in step.applies], live) == []
    assert not [delete for delete in step.deletes if delete.key.kind == "Deployment"]
    upgraded = {**live, **settled([apply.manifest for apply in step.applies])}
    for delete in step.deletes:
        del upgraded[delete.key]
    assert not planned(spec, upgraded).has_writes, "an upgrade settles"
    (rolled_back,) = previous(("plan", body_of(spec), entries(upgraded)))
    assert (rolled_back["invalid"], _replaced_pods(rolled_back["applies"], upgraded)) == ("", [])
    assert not [key for key in rolled_back["deletes"] if key[0] == "Deployment"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_rollback_leaves_the_engines_of_the_next_version(spec: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    use_next_wiring(monkeypatch)
    newer = settled(_manifests(spec))
    (before, rolled_back) = previous(("plan", body_of(spec), []), ("plan", body_of(spec), entries(newer)))
    assert newer.keys() != settled(before["applies"]).keys(), "its own engines have another revision"
    assert (rolled_back["invalid"], _replaced_pods(rolled_back["applies"], newer)) == ("", [])
    assert not [key for key in rolled_back["deletes"] if key[0] == "Deployment"]


def test_the_next_operator_reports_the_recorded_crd() -> None:
    (older,) = previous(("schema",))
    assert {".spec.gateway.compression", ".status.newer"} <= set(gaps(older, next_schema()))
    assert list(gaps(next_schema(), older)) == [], "no name disappears"


def test_the_recorded_operator_works_with_the_next_crd() -> None:
    """It ignores a field that it does not have: the default of the CRD, or a user's value."""
    stored = with_defaults(PLAIN | {"gateway": {}}, next_schema()["properties"]["spec"])
    assert stored["gateway"]["compression"] is True, "defaults are added"
    (plain,) = previous(("plan", body_of(stored), []))
    assert (plain["invalid"], bool(plain["applies"])) == ("", True)


@pytest.mark.parametrize("spec", SPECS)
def test_gateways_and_engines_of_neighbouring_versions_understand_each_other(spec: Body) -> None:
    ours = _manifests(spec)
    (before,) = previous(("plan", body_of(spec), []))
    theirs = before["applies"]
    pods = pods_of(ours)
    read = previous(*(("read_pod", pod) for pod in pods), ("flags", arguments_of_gateway(ours)))
    for pod, found in zip(pods, read[:-1], strict=True):
        labels, notes = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert (found["role"], found["revision"]) == (labels["pdx.dev/role"], labels["pdx.dev/revision"])
        assert (found["connector"], found["order"]) == (notes["pdx.dev/connector"], notes["pdx.dev/order"])
    assert read[-1] == "", "a gateway of the recorded version accepts the flags of the next operator"
    for pod in pods_of(theirs):
        endpoint = read_pod(pod)
        assert isinstance(endpoint, EndpointSpec), endpoint
        assert endpoint.revision == pod["metadata"]["labels"]["pdx.dev/revision"]
    create_parser().parse_args(arguments_of_gateway(theirs))


def test_a_pinned_gateway_refuses_the_flag_of_a_new_setting() -> None:
    (refusal,) = previous(("flags", [*arguments_of_gateway(_manifests(PLAIN)), "--compression"]))
    assert refusal
