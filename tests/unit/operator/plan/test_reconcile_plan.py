"""Plans: which children are created, restored, deleted, and never touched."""

import copy
from typing import Any

import pytest

from pdx_api.names import API_VERSION, GROUP, KIND, LABEL_DEPLOYMENT, LABEL_REVISION, LABEL_ROLE
from pdx_operator.kube.resources import UNUSABLE, ChildKey, Snapshot
from pdx_operator.plan.operations import Apply
from pdx_operator.plan.ownership import Ownership, ownership
from pdx_operator.plan.reconcile_plan import Plan, plan
from pdx_operator.render.gateway import Installation

Body = dict[str, Any]

BODY: Body = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "m", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"},
    "spec": {"model": {"name": "x"}, "prefill": {"replicas": 2}, "decode": {"replicas": 1}},
}
OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": "m", "uid": "u", "controller": True}


def _plan(body: Body, children: dict[ChildKey, Body] | None = None) -> Plan:
    return plan(Snapshot(body, children or {}), Installation("gateway:1"))


def _applied(step: Plan, children: dict[ChildKey, Body] | None = None) -> dict[ChildKey, Body]:
    """The children after a plan has been performed, if the API server adds only uids."""
    live = copy.deepcopy(children or {})
    for apply in step.applies:
        live[apply.key] = copy.deepcopy(apply.manifest)
        live[apply.key]["metadata"].setdefault("uid", f"uid of {apply.key}")
    for delete in step.deletes:
        del live[delete.key]
    return live


@pytest.fixture
def settled() -> dict[ChildKey, Body]:
    return _applied(_plan(BODY))


def _with(**spec: Any) -> Body:
    return {**BODY, "spec": {**BODY["spec"], **spec}}


_STUB = {"spec": {}, UNUSABLE: "the object has 300 KiB; write one of at most 32 KiB"}


@pytest.mark.parametrize("owner", [{}, {"ownerReferences": [OWNER]}], ids=["nobody's", "own"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_child_that_cannot_be_read_is_no_engine(role: str, owner: Body, settled: dict[ChildKey, Body]) -> None:
    labels = {LABEL_DEPLOYMENT: "m", LABEL_ROLE: role, LABEL_REVISION: "x"}
    metadata = {"name": "stray", "namespace": "ns", "uid": "s", "labels": labels, **owner}
    stray = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, **_STUB}
    step = _plan(BODY, {**settled, ChildKey("Deployment", "stray"): stray})
    assert (step.invalid, step.applies) == ("", ())
    assert [key.name for key in (delete.key for delete in step.deletes)] == (["stray"] if owner else [])


@pytest.mark.parametrize(
    "status", [{"status": 3}, {"status": {"replicas": "x"}}, {"status": {"conditions": [3]}}], ids=str
)
def test_an_object_that_cannot_be_planned_is_invalid(status: Body, settled: dict[ChildKey, Body]) -> None:
    key = next(key for key in settled if key.name.startswith("m-decode-"))
    step = _plan(BODY, {**settled, key: {**settled[key], **status}})
    assert "PDX cannot plan this object" in step.invalid
    assert not step.has_writes


def _applied_names(step: Plan) -> set[str]:
    return {apply.key.name for apply in step.applies}


def _ready(live: dict[ChildKey, Body]) -> dict[ChildKey, Body]:
    """All pods of all Deployments exist and serve."""
    for key, body in live.items():
        if key.kind == "Deployment":
            n = body["spec"].setdefault("replicas", 1)
            body["status"] = {"observedGeneration": 1, "replicas": n, "updatedReplicas": n, "availableReplicas": n}
    return live


def test_a_settled_object_needs_no_writes(settled: dict[ChildKey, Body]) -> None:
    step = _plan(BODY, settled)
    assert not step.has_writes
    assert step.awaits_pods
    assert not _plan(BODY, _ready(settled)).awaits_pods


def test_fields_of_a_newer_crd_are_ignored(settled: dict[ChildKey, Body]) -> None:
    newer = copy.deepcopy(BODY)
    newer["spec"] |= {"newer": {"a": 1}, "gateway": {"compression": True}}
    newer["spec"]["prefill"]["newer"] = "x"
    step = _plan(newer, settled)
    assert (step.invalid, step.has_writes) == ("", False)


def test_every_new_child_has_no_uid() -> None:
    step = _plan(BODY)
    assert step.has_writes
    assert {(apply.uid, apply.reason) for apply in step.applies} == {("", "")}


def test_an_edited_child_is_restored(settled: dict[ChildKey, Body]) -> None:
    key = ChildKey("Service", "m-gateway")
    settled[key]["spec"]["selector"] = {"app": "other"}
    (apply,) = _plan(BODY, settled).applies
    assert isinstance(apply, Apply)
    assert (apply.key, apply.uid) == (key, f"uid of {key}")
    assert apply.reason.startswith("spec.selector")


def test_scaling_changes_one_deployment(settled: dict[ChildKey, Body]) -> None:
    step = _plan(_with(decode={"replicas": 3}), settled)
    (apply,) = step.applies
    assert apply.key.name.startswith("m-decode-")
    assert apply.manifest["spec"]["replicas"] == 3


def test_an_older_revision_keeps_its_services_until_its_pods_are_gone(settled: dict[ChildKey, Body]) -> None:
    body = _with(engine={"dtype": "float32"})
    old = {key for key in settled if "-prefill-" in key.name or "-decode-" in key.name}
    first = _plan(body, _ready(settled))
    assert not first.deletes
    live = _applied(first, settled)
    for key in old:
        if key.kind == "Deployment":
            live[key]["spec"]["replicas"] = 0
            live[key]["status"] = {"observedGeneration": 1}
    deletes = _plan(body, live).deletes
    assert {delete.key for delete in deletes} == old
    assert all(delete.foreground for delete in deletes), "a Deployment exists until its last pod is gone"


def test_side_services_of_an_older_revision_stay_as_long_as_its_engines() -> None:
    lmcache = _with(kvTransfer={"connector": "LMCache"})
    settled = _applied(_plan(lmcache))
    servers = {key for key in settled if "-lmcache-" in key.name}
    assert {key.kind for key in servers} == {"Deployment", "Service"}
    first = _plan(BODY, _ready(settled))
    assert not first.deletes
    live = _applied(first, settled)
    for key in live:
        if key.kind == "Deployment" and key in settled and key not in servers and "-gateway" not in key.name:
            live[key]["spec"]["replicas"] = 0
            live[key]["status"] = {"observedGeneration": 1}
    step = _plan(BODY, live)
    removed = {delete.key for delete in step.deletes}
    assert removed
    assert not removed & {*servers, ChildKey("NetworkPolicy", "m-services")}
    for key in removed:
        live[key]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not _plan(BODY, live).deletes, "engines drain, and their side services serve"
    for key in removed:
        del live[key]
    assert {delete.key for delete in _plan(BODY, live).deletes} == {*servers, ChildKey("NetworkPolicy", "m-services")}


def test_only_our_own_stray_children_are_deleted(settled: dict[ChildKey, Body]) -> None:
    stray = copy.deepcopy(settled[ChildKey("Service", "m-gateway")])
    stray["metadata"] |= {"name": "stray", "uid": "s"}
    orphan = copy.deepcopy(stray)
    orphan["metadata"] |= {"name": "orphan", "uid": "o", "ownerReferences": []}
    theirs = copy.deepcopy(stray)
    theirs["metadata"] |= {"name": "theirs", "uid": "t", "ownerReferences": [_reference(uid="x", kind="Other")]}
    live = {**settled, **{ChildKey("Service", b["metadata"]["name"]): b for b in (stray, orphan, theirs)}}
    assert [(delete.key.name, delete.uid) for delete in _plan(BODY, live).deletes] == [("stray", "s")]


def test_a_terminating_child_is_left_alone(settled: dict[ChildKey, Body]) -> None:
    key = ChildKey("Service", "m-gateway")
    settled[key]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    settled[key]["spec"] = {}
    assert not _plan(BODY, settled).has_writes


def test_a_foreign_object_is_reported_and_not_written(settled: dict[ChildKey, Body]) -> None:
    key = ChildKey("Service", "m-gateway")
    settled[key]["metadata"]["ownerReferences"] = [_reference(uid="x", kind="Other")]
    step = _plan(BODY, settled)
    assert step.foreign == (key,)
    assert not step.has_writes


def test_children_of_a_previous_owner_are_deleted_first(settled: dict[ChildKey, Body]) -> None:
    body = {**BODY, "metadata": {**BODY["metadata"], "uid": "new"}}
    step = _plan(body, settled)
    assert {delete.key for delete in step.deletes_of_previous} == set(settled)
    assert not step.applies
    assert not step.deletes


def test_an_orphan_with_our_label_is_adopted(settled: dict[ChildKey, Body]) -> None:
    key = ChildKey("Service", "m-gateway")
    del settled[key]["metadata"]["ownerReferences"]
    (apply,) = _plan(BODY, settled).applies
    assert apply.key == key
    assert apply.manifest["metadata"]["ownerReferences"][0]["uid"] == "u"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(_with(decode={"replicas": -1}), "replicas", id="wrong value"),
        pytest.param(
            _with(prefill={"podTemplate": {"spec": {"containers": [{"name": "engine", "args": ["x"]}]}}}),
            "args",
            id="overlay of what PDX owns",
        ),
    ],
)
def test_an_invalid_spec_gives_a_message(body: Body, message: str, settled: dict[ChildKey, Body]) -> None:
    step = _plan(body, settled)
    assert message in step.invalid
    assert not step.has_writes
    assert not step.awaits_pods


def _reference(*, uid: str, kind: str = KIND, name: str = "m", group: str = GROUP) -> Body:
    return {"apiVersion": f"{group}/v1", "kind": kind, "name": name, "uid": uid, "controller": True}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"ownerReferences": [_reference(uid="u")]}, Ownership.OURS),
        ({"ownerReferences": [_reference(uid="v")]}, Ownership.PREVIOUS_OWNER),
        ({"ownerReferences": [_reference(uid="v", name="n")]}, Ownership.FOREIGN),
        ({"ownerReferences": [_reference(uid="v", kind="Other")]}, Ownership.FOREIGN),
        ({"ownerReferences": [_reference(uid="v", group="other.dev")]}, Ownership.FOREIGN),
        ({"labels": {LABEL_DEPLOYMENT: "m"}}, Ownership.ORPHAN),
        ({"labels": {LABEL_DEPLOYMENT: "n"}}, Ownership.FOREIGN),
        ({}, Ownership.FOREIGN),
    ],
)
def test_ownership(metadata: Body, expected: Ownership) -> None:
    assert ownership(metadata, "m", "u") is expected


@pytest.mark.parametrize("name", ["m-decode-", "m-gateway"])
def test_a_paused_child_is_resumed(name: str, settled: dict[ChildKey, Body]) -> None:
    key = next(key for key in settled if key.kind == "Deployment" and key.name.startswith(name))
    paused = {**settled, key: {**settled[key], "spec": {**settled[key]["spec"], "paused": True}}}
    (apply,) = _plan(BODY, paused).applies
    assert (apply.key, apply.reason, apply.manifest["spec"]["paused"]) == (key, "spec.paused", False)
    resumed = _applied(_plan(BODY, paused), paused)
    (again,) = _plan(BODY, resumed).applies
    assert "paused" not in again.manifest["spec"], "the field is given back"
    assert not _plan(BODY, _applied(_plan(BODY, resumed), resumed)).applies
