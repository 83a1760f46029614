"""docs/operator.md names exactly the conditions and reasons that the operator writes; its examples work."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import KIND, ConditionType, Role, engines_name
from pdx_api.render.engines import pairing_revision
from pdx_api.spec.parse import parse
from pdx_api.verification import Cause
from pdx_operator.controller import reconciler
from pdx_operator.observed import engine_log
from pdx_operator.plan.rollout import Phase
from pdx_operator.status import conditions, diagnosis, problems
from tests.documents import BLOCKS, ROOT
from tests.unit.operator.render.manifests_of import manifests_of

GUIDE = (ROOT / "docs" / "operator.md").read_text()
PARTS = {
    "{server.capitalize()}NotReady": {"DecodeNotReady", "AggregatedNotReady"},
    "{kind}NotFound": {"SecretNotFound", "ConfigMapNotFound"},
}
"""Reasons that are composed, and their values."""
NAMED = {"INVALID": conditions.INVALID, "SERVING": conditions.SERVING, "NOTHING_FOUND": conditions.NOTHING_FOUND}
NAMED |= {"CRD_TOO_OLD": conditions.CRD_TOO_OLD}
PASSED_ON = {"facts.rollout.phase", "failing.reason", "failure.reason", "facts.problems[0].reason", "old['reason']"}
PASSED_ON |= {"cause.reason", "reason", "now['reason']", "change.reason", "broken.cause"}
"""Expressions whose reason is written elsewhere."""
PLACES = {"_Outcome": 1, "Diagnosis": 0, "_found": 1, "Transition": 0, "Event": 0}
"""Position of the reason among the arguments of a call."""


def reasons(module: object, call: str) -> set[str]:
    """The reasons that a module passes to calls of that name."""
    source = Path(str(vars(module)["__file__"])).read_text()
    return {
        reason
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == call
        for reason in _reasons(node.args[PLACES[call]])
    }


def _reasons(value: ast.expr) -> Iterator[str]:
    text = ast.unparse(value)
    if isinstance(value, ast.Constant):
        yield str(value.value)
    elif isinstance(value, ast.JoinedStr):
        yield from PARTS[text[2:-1]]
    elif isinstance(value, ast.BoolOp):
        yield from _reasons(value.values[-1])  # Kubernetes' own reason comes first
    elif text in NAMED:
        yield NAMED[text]
    else:
        assert text in PASSED_ON, f"{text} may be a reason that is not documented"


def table(head: str) -> set[str]:
    """The names in the first column of the table with this head."""
    rows = GUIDE[GUIDE.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return {word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[1])} - {"Evicted"}


def test_every_condition_is_explained() -> None:
    assert table("condition") == set(ConditionType)


def test_every_reason_is_explained_and_no_other() -> None:
    outcomes = reasons(conditions, "_Outcome")
    found = {failure.reason for failure in engine_log.FAILURES}
    found |= reasons(problems, "Diagnosis") | reasons(diagnosis, "Diagnosis") | reasons(diagnosis, "_found")
    found |= {conditions.NOTHING_FOUND, conditions.INVALID, conditions.CRD_TOO_OLD}

    assert table("reason of `Degraded`") == found
    assert table("reason of `Progressing`") == {*Phase, "GatewayStarting", conditions.INVALID}
    ready = table("reason of `Ready`")
    proof = table("reason of `KVTransferVerified`")
    assert proof >= set(Cause)
    others = table("reason of `Progressing`") | {conditions.NOTHING_FOUND, conditions.CRD_TOO_OLD}
    assert ready | others | proof == outcomes | set(Phase) | set(Cause)


def test_causes_that_transfer_probes_cannot_name_are_marked() -> None:
    marked = set(re.findall(r"^\| `(\w+)` \| . \| `pdx doctor` alone names it: ", GUIDE, re.MULTILINE))
    modules = (ROOT / "proxy/pdx_proxy/verification").glob("*.py")
    named = {name for path in modules for name in re.findall(r"\bCause\.(\w+)", path.read_text())}

    assert marked == {cause.value for cause in Cause if cause.name not in named}


@pytest.mark.parametrize(("module", "call"), [(conditions, "Transition"), (reconciler, "Step")])
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


def test_the_overlay_for_other_rdma_devices_adds_the_capability() -> None:
    security = _decode_pod("vpc.amazonaws.com/efa")["containers"][0]["securityContext"]

    assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_the_overlay_for_openshift_names_no_user() -> None:
    assert _decode_pod("$patch")["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
