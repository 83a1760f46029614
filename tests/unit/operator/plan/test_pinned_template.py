"""Pinned templates, and the hash of applied manifests."""

import copy
import json
import random
from typing import Any

import pytest

from pdx_api.spec.parse import parse
from pdx_api.spec.types import PDDeployment
from pdx_api.version import pdx_version
from pdx_operator.plan.drift import differs
from pdx_operator.plan.pinned_template import pinned, scale_only, with_hash
from tests.unit.operator.render.manifests_of import manifests_of

INPUTS, TEMPLATE, APPLIED = "pdx.dev/inputs", "pdx.dev/template", "pdx.dev/applied"


def _deployment(**spec: Any) -> PDDeployment:
    engine = {"drainSeconds": 60, **spec.pop("engine", {})}
    body = {"model": {"name": "m"}, "prefill": {}, "decode": {}, "engine": engine, **spec}
    metadata = {"name": "qwen", "namespace": "llm"}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": metadata, "spec": body})


def _engines(role: str = "decode", **spec: Any) -> dict[str, Any]:
    created = manifests_of(_deployment(**spec))
    return next(m for m in created if m["kind"] == "Deployment" and m["metadata"]["labels"]["pdx.dev/role"] == role)


def _by_an_older_operator(manifest: dict[str, Any]) -> dict[str, Any]:
    """A live object from an operator that renders another template for the same spec."""
    live = copy.deepcopy(manifest)
    live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    live["metadata"]["annotations"][TEMPLATE] = json.dumps(live["spec"]["template"])
    return with_hash(live)


def test_equal_inputs_keep_the_stored_template() -> None:
    live = _by_an_older_operator(_engines())
    desired = with_hash(pinned(_engines(), live))
    assert desired["spec"]["template"] == live["spec"]["template"]
    assert differs(desired, live) is None


def test_another_version_of_pdx_renders_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade replaces no engine: neither revision nor template contains the version."""
    one = _engines()
    monkeypatch.setattr("importlib.metadata.version", lambda _: "99.0.0")

    assert pdx_version() == "99.0.0"
    assert _engines() == one


FROZEN = [
    ({"model": {"name": "Qwen/Qwen3-8B"}}, "decode", "c447dbbe794d7489"),
    ({"mode": "Aggregated", "aggregated": {}}, "aggregated", "eceee1c015a8c35c"),
    ({"kvTransfer": {"order": "Concurrent", "config": {"kv_lease_duration": 60}}}, "prefill", "6a2daf5f38edb976"),
]


@pytest.mark.parametrize(("spec", "role", "inputs"), FROZEN)
def test_hashes_of_inputs_never_change(spec: dict[str, Any], role: str, inputs: str) -> None:
    """Another hash would restart every engine of every user at the next upgrade of the operator."""
    assert _engines(role, **spec)["metadata"]["annotations"][INPUTS] == inputs


def test_other_replicas_leave_the_template_alone() -> None:
    live = _by_an_older_operator(_engines())
    desired = pinned(_engines(decode={"replicas": 5}), live)
    assert desired["spec"]["replicas"] == 5
    assert desired["spec"]["template"] == live["spec"]["template"]


def test_drift_is_corrected_from_the_stored_template() -> None:
    live = _by_an_older_operator(_engines())
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    desired = with_hash(pinned(_engines(), live))
    assert differs(desired, live) == "spec.template.spec.containers[engine].image"
    assert desired["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"decode": {"resources": {"limits": {"cpu": 2}}}},
        {"decode": {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}}},
        {"decode": {"podTemplate": {"spec": {"securityContext": {"runAsUser": None}}}}},
        {"engine": {"drainSeconds": 5}},
        {"engine": {"imagePullPolicy": "Always"}},
        {"model": {"name": "m", "tokenSecretRef": {"name": "hub"}}},
    ],
)
def test_other_inputs_bring_a_new_template_for_the_same_engines(spec: dict[str, Any]) -> None:
    live, rendered = _by_an_older_operator(_engines()), _engines(**spec)
    assert rendered["metadata"]["name"] == live["metadata"]["name"]
    assert pinned(rendered, live) is rendered


def test_a_change_to_one_role_is_no_input_of_the_other() -> None:
    changed = _engines("prefill", decode={"resources": {"limits": {"cpu": 2}}})
    assert changed["metadata"]["annotations"][INPUTS] == _engines("prefill")["metadata"]["annotations"][INPUTS]


@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        ({}, "91eb29af0c773743"),
        (
            {"decode": {"podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"hostname": None}}}},
            "ceba7255e14fbeb8",
        ),
        ({"mode": "Aggregated"}, "eceee1c015a8c35c"),
    ],
)
def test_hashes_of_more_specs_never_change(spec: dict[str, Any], inputs: str) -> None:
    """Another hash would replace every pinned template: see `pdx_api.render.engines.stated`."""
    role = "aggregated" if "mode" in spec else "decode"
    assert _engines(role, **spec)["metadata"]["annotations"][INPUTS] == inputs


@pytest.mark.parametrize("live", [None, {}, {"metadata": {"annotations": None}}])
def test_a_new_deployment_is_applied_as_rendered(live: dict[str, Any] | None) -> None:
    rendered = _engines()
    assert pinned(rendered, live) is rendered


@pytest.mark.parametrize("stored", ["", "{", "[]", "{}", "eJw=", "!"])
def test_an_unreadable_stored_template_is_replaced(stored: str) -> None:
    live = _by_an_older_operator(_engines())
    live["metadata"]["annotations"][TEMPLATE] = stored
    rendered = _engines()
    assert pinned(rendered, live) is rendered


@pytest.mark.parametrize("noise", [False, True], ids=["compressible", "random"])
def test_annotations_of_a_large_object_stay_within_the_limit(noise: bool) -> None:
    chance = random.Random(1)
    value = [chance.randbytes(4000).hex() if noise else "x" * 8000 for _ in range(64)]
    env = [{"name": f"V{i}", "value": text} for i, text in enumerate(value)]
    rendered = with_hash(_engines(engine={"env": env}))
    size = sum(len(name) + len(text) for name, text in rendered["metadata"]["annotations"].items())
    assert size < 262_144, "the API server refuses more"
    live = copy.deepcopy(rendered)
    live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    kept = pinned(_engines(engine={"env": env}), live)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert kept == (1 if noise else 75), "a template that is too large to be recorded is taken from the live object"
    other = pinned(_engines(engine={"env": env, "drainSeconds": 5}), live)
    assert other["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 20


def test_a_child_without_inputs_is_applied_as_rendered() -> None:
    for child in manifests_of(_deployment()):
        if INPUTS not in child["metadata"].get("annotations", {}):
            assert pinned(child, with_hash(child)) is child


def test_the_hash_distinguishes_manifests() -> None:
    first, same, other = (with_hash(_engines(decode={"replicas": n})) for n in (1, 1, 2))
    notes = [manifest["metadata"]["annotations"][APPLIED] for manifest in (first, same, other)]
    assert notes[0] == notes[1] != notes[2]
    assert differs(first, same) is None
    unstamped = _engines(decode={"replicas": 1})
    assert differs(first, unstamped) == f"metadata.annotations.{APPLIED}"


def _with_defaults(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the additions of the API server and of other writers."""
    live = copy.deepcopy(manifest)
    live["metadata"].update(uid="1", resourceVersion="5", generation=2, managedFields=[{"manager": "x"}])
    live["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    live["spec"]["template"]["spec"].update(restartPolicy="Always", dnsPolicy="ClusterFirst")
    live["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    live["status"] = {"replicas": 1}
    return live


def test_an_older_revision_is_only_scaled() -> None:
    applied = with_hash(_engines(decode={"replicas": 3}))
    again = scale_only(_with_defaults(applied), 1)
    assert again["spec"]["replicas"] == 1
    assert with_hash(scale_only(_with_defaults(applied), 3)) == applied


def test_scaling_needs_no_stored_template() -> None:
    live = _with_defaults(_engines())
    del live["metadata"]["annotations"][TEMPLATE]
    assert scale_only(live, 0)["spec"]["template"] == live["spec"]["template"]
