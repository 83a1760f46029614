"""docs/operator.md names exactly the conditions and reasons that the operator writes; its examples work."""

import json
import re
from typing import Any

import pytest

from pdx_api.names import KIND, ConditionType, Role, engines_name
from pdx_api.render.engines import pairing_revision
from pdx_api.spec.parse import parse
from pdx_api.verification import Cause
from pdx_operator.app.metrics import STATES
from pdx_operator.app.object_summary import UNKNOWN
from pdx_operator.controller import reconciler
from pdx_operator.plan.rollout import Phase
from pdx_operator.status import causes, conditions
from tests.documents import BLOCKS, ROOT
from tests.reasons import reasons, reasons_of_degraded
from tests.unit.operator.render.manifests_of import manifests_of

GUIDE = (ROOT / "docs" / "operator.md").read_text()


def table(head: str) -> set[str]:
    """The names in the first column of the table with this head."""
    rows = GUIDE[GUIDE.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return {word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[1])} - {"Evicted"}


def test_every_condition_is_explained() -> None:
    assert table("condition") == set(ConditionType)


def test_every_reason_is_explained_and_no_other() -> None:
    outcomes = reasons(conditions, "_Outcome")
    assert table("reason of `Degraded`") == reasons_of_degraded()
    assert table("reason of `Progressing`") == {
        *(*Phase, "GatewayStarting", "GatewayUpgradeWaiting", conditions.PAUSED, causes.INVALID)
    }
    assert {*table("reason of `Progressing`"), UNKNOWN} == set(STATES), "the states of pdx_operator_rollouts"
    ready = table("reason of `Available`, `Ready`")
    proof = table("reason of `KVTransferVerified`")
    assert proof >= set(Cause)
    others = table("reason of `Progressing`") | {conditions.NOTHING_FOUND, conditions.CRD_TOO_OLD}
    assert ready | others | proof == outcomes | set(Phase) | set(Cause)


def test_causes_that_transfer_probes_cannot_name_are_marked() -> None:
    marked = set(re.findall(r"^\| `(\w+)` \| only in `pdx doctor` \| ", GUIDE, re.MULTILINE))
    modules = (ROOT / "proxy/pdx_proxy/verification").glob("*.py")
    named = {name for path in modules for name in re.findall(r"\bCause\.(\w+)", path.read_text())}

    assert marked == {cause.value for cause in Cause if cause.name not in named}


@pytest.mark.parametrize(("module", "call"), [(conditions, "Event"), (reconciler, "Event")])
def test_every_event_is_named(module: object, call: str) -> None:
    documented = GUIDE[GUIDE.index("Events carry these reasons") :].split("\n\n")[0]

    assert reasons(module, call) <= set(re.findall(r"`(\w+)`", documented))


@pytest.mark.parametrize("body", [pytest.param(body, id=where) for where, body in BLOCKS if body["kind"] == KIND])
def test_examples_in_documents_render(body: dict[str, Any]) -> None:
    assert manifests_of(parse(body), None)


def _decode_pod(text: str) -> dict[str, Any]:
    """The pod of D for the example in the documents that contains this text."""
    body = next(body for _, body in BLOCKS if text in json.dumps(body))
    deployment = parse(body)
    manifests = manifests_of(deployment, None)
    name = engines_name(deployment.metadata.name, Role.DECODE, pairing_revision(deployment.spec))
    (found,) = (m for m in manifests if m["kind"] == "Deployment" and m["metadata"]["name"] == name)
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def test_the_example_of_rdma_is_complete() -> None:
    pod = _decode_pod("mlnx_sriov_rdma")
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8, "nvidia.com/mlnx_sriov_rdma": 8}


def test_the_whole_object_serves_the_commit_that_its_job_downloads() -> None:
    job = next(body for _, body in BLOCKS if body["metadata"]["name"] == "fill-hub-cache")
    spec = next(body for _, body in BLOCKS if body["metadata"]["name"] == "llama-70b" and body["kind"] == KIND)["spec"]
    (download,) = job["spec"]["template"]["spec"]["containers"]
    assert download["command"][2:5] == [spec["model"]["name"], "--revision", spec["model"]["revision"]]
    assert download["image"] == spec["engine"]["image"]


def test_the_engines_of_the_whole_object_fit_on_its_nodes_also_in_a_rollout() -> None:
    spec = next(body for _, body in BLOCKS if body["metadata"]["name"] == "llama-70b" and body["kind"] == KIND)["spec"]
    for role in ("prefill", "decode"):  # an engine takes a whole node, so every free node fits every engine
        assert spec[role]["parallelism"]["tensor"] == spec[role]["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert spec["rollout"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_the_overlay_for_openshift_names_no_user() -> None:
    assert _decode_pod("$patch")["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
