"""What follows from a snapshot: what is made, left alone, put back, removed, and never touched."""

import copy
from typing import Any

import pytest

from pdx_api.names import API_VERSION, GROUP, KIND, LABEL_DEPLOYMENT
from pdx_operator.kube.cache import ChildKey, Snapshot
from pdx_operator.plan.reconcile_plan import Change, Claim, Decision, claim, decide

Body = dict[str, Any]

BODY: Body = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "m", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"},
    "spec": {"model": {"name": "x"}, "prefill": {"replicas": 2}, "decode": {"replicas": 1}},
}


def _decide(body: Body, children: dict[ChildKey, Body] | None = None) -> Decision:
    return decide(Snapshot(body, children or {}), gateway_image="gateway:1")


def _applied(decision: Decision, children: dict[ChildKey, Body] | None = None) -> dict[ChildKey, Body]:
    """What exists after a decision has been performed, as if the API server added nothing but uids."""
    live = copy.deepcopy(children or {})
    for change in decision.changes:
        live[change.key] = copy.deepcopy(change.manifest)
        live[change.key]["metadata"].setdefault("uid", f"uid of {change.key}")
    for removal in decision.removals:
        del live[removal.key]
    return live


@pytest.fixture
def settled() -> dict[ChildKey, Body]:
    return _applied(_decide(BODY))


def _with(**spec: Any) -> Body:
    return {**BODY, "spec": {**BODY["spec"], **spec}}


def _changed(decision: Decision) -> set[str]:
    return {change.key.name for change in decision.changes}


def _ready(live: dict[ChildKey, Body]) -> dict[ChildKey, Body]:
    """All pods of all Deployments exist and serve."""
    for key, body in live.items():
        if key.kind == "Deployment":
            n = body["spec"]["replicas"]
            body["status"] = {"observedGeneration": 1, "replicas": n, "updatedReplicas": n, "availableReplicas": n}
    return live


def test_nothing_follows_from_what_is_as_it_should_be(settled: dict[ChildKey, Body]) -> None:
    decision = _decide(BODY, settled)
    assert not decision.writes
    assert decision.awaits
    assert not _decide(BODY, _ready(settled)).awaits


def test_every_child_is_made_without_a_uid() -> None:
    decision = _decide(BODY)
    assert decision.writes
    assert {(change.uid, change.reason) for change in decision.changes} == {("", "")}


def test_a_child_that_was_edited_is_put_back_by_its_uid(settled: dict[ChildKey, Body]) -> None:
    key = ChildKey("Service", "m-gateway")
    settled[key]["spec"]["selector"] = {"app": "other"}
    (change,) = _decide(BODY, settled).changes
    assert isinstance(change, Change)
    assert (change.key, change.uid) == (key, f"uid of {key}")
    assert change.reason.startswith("spec.selector")


def test_scaling_changes_one_deployment(settled: dict[ChildKey, Body]) -> None:
    decision = _decide(_with(decode={"replicas": 3}), settled)
    (change,) = decision.changes
    assert change.key.name.startswith("m-decode-")
    assert change.manifest["spec"]["replicas"] == 3


def test_an_older_revision_keeps_its_services_until_its_pods_are_gone(settled: dict[ChildKey, Body]) -> None:
    body = _with(engine={"dtype": "float32"})
    old = {key for key in settled if "-prefill-" in key.name or "-decode-" in key.name}
    first = _decide(body, _ready(settled))
    assert not first.removals
    live = _applied(first, settled)
    for key in old:
        if key.kind == "Deployment":
            live[key]["spec"]["replicas"] = 0
            live[key]["status"] = {"observedGeneration": 1}
    assert {removal.key for removal in _decide(body, live).removals} == old


def test_side_services_of_an_older_revision_stay_as_long_as_its_engines() -> None:
    lmcache = _with(kvTransfer={"connector": "LMCache"})
    settled = _applied(_decide(lmcache))
    servers = {key for key in settled if "-lmcache-" in key.name}
    assert {key.kind for key in servers} == {"Deployment", "Service"}
    first = _decide(BODY, _ready(settled))
    assert not first.removals
    live = _applied(first, settled)
    for key in live:
        if key.kind == "Deployment" and key in settled and key not in servers and "-gateway" not in key.name:
            live[key]["spec"]["replicas"] = 0
            live[key]["status"] = {"observedGeneration": 1}
    removed = {removal.key for removal in _decide(BODY, live).removals}
    assert removed >= {*servers, ChildKey("NetworkPolicy", "m-services")}


def test_what_nobody_wants_any_more_is_removed_if_it_is_ours(settled: dict[ChildKey, Body]) -> None:
    stray = copy.deepcopy(settled[ChildKey("Service", "m-gateway")])
    stray["metadata"] |= {"name": "stray", "uid": "s"}
    orphan = copy.deepcopy(stray)
    orphan["metadata"] |= {"name": "orphan", "uid": "o", "ownerReferences": []}
    theirs = copy.deepcopy(stray)
    theirs["metadata"] |= {"name": "theirs", "uid": "t", "ownerReferences": [_reference(uid="x", kind="Other")]}
    live = {**settled, **{ChildKey("Service", b["metadata"]["name"]): b for b in (stray, orphan, theirs)}}
    assert [(removal.key.name, removal.uid) for removal in _decide(BODY, live).removals] == [("stray", "s")]


def test_what_is_already_being_deleted_is_left_to_it(settled: dict[ChildKey, Body]) -> None:
    key = ChildKey("Service", "m-gateway")
    settled[key]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    settled[key]["spec"] = {}
    assert not _decide(BODY, settled).writes


def test_somebody_elses_object_is_named_and_not_written(settled: dict[ChildKey, Body]) -> None:
    key = ChildKey("Service", "m-gateway")
    settled[key]["metadata"]["ownerReferences"] = [_reference(uid="x", kind="Other")]
    decision = _decide(BODY, settled)
    assert decision.foreign == (key,)
    assert not decision.writes


def test_children_of_a_former_object_are_waited_for(settled: dict[ChildKey, Body]) -> None:
    body = {**BODY, "metadata": {**BODY["metadata"], "uid": "new"}}
    decision = _decide(body, settled)
    assert {removal.key for removal in decision.leaving} == set(settled)
    assert not decision.changes
    assert not decision.removals


def test_an_orphan_with_our_label_is_adopted(settled: dict[ChildKey, Body]) -> None:
    key = ChildKey("Service", "m-gateway")
    del settled[key]["metadata"]["ownerReferences"]
    (change,) = _decide(BODY, settled).changes
    assert change.key == key
    assert change.manifest["metadata"]["ownerReferences"][0]["uid"] == "u"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(_with(colour={}), "colour", id="unknown field"),
        pytest.param(
            _with(prefill={"podTemplate": {"spec": {"containers": [{"name": "engine", "args": ["x"]}]}}}),
            "args",
            id="overlay of what PDX owns",
        ),
    ],
)
def test_a_spec_that_cannot_be_used_is_a_sentence(body: Body, words: str, settled: dict[ChildKey, Body]) -> None:
    decision = _decide(body, settled)
    assert words in decision.invalid
    assert not decision.writes
    assert not decision.awaits


def _reference(*, uid: str, kind: str = KIND, name: str = "m", group: str = GROUP) -> Body:
    return {"apiVersion": f"{group}/v1", "kind": kind, "name": name, "uid": uid, "controller": True}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"ownerReferences": [_reference(uid="u")]}, Claim.OURS),
        ({"ownerReferences": [_reference(uid="v")]}, Claim.FORMER),
        ({"ownerReferences": [_reference(uid="v", name="n")]}, Claim.FOREIGN),
        ({"ownerReferences": [_reference(uid="v", kind="Other")]}, Claim.FOREIGN),
        ({"ownerReferences": [_reference(uid="v", group="other.dev")]}, Claim.FOREIGN),
        ({"labels": {LABEL_DEPLOYMENT: "m"}}, Claim.NOBODY),
        ({"labels": {LABEL_DEPLOYMENT: "n"}}, Claim.FOREIGN),
        ({}, Claim.FOREIGN),
    ],
)
def test_claims(metadata: Body, expected: Claim) -> None:
    assert claim(metadata, "m", "u") is expected
