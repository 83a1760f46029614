"""The reasons of conditions and Events that the operator writes, read from its source."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pdx_operator.observed import engine_log
from pdx_operator.status import causes, conditions, diagnosis, image_pulls, problems, refusals, scheduling

PARTS = {
    "{server.capitalize()}NotReady": {"DecodeNotReady", "AggregatedNotReady"},
    "{kind}NotFound": {"SecretNotFound", "ConfigMapNotFound"},
}
"""Reasons that are composed, and their values."""
NAMED = {"INVALID": causes.INVALID, "SERVING": conditions.SERVING, "NOTHING_FOUND": conditions.NOTHING_FOUND}
NAMED |= {"CRD_TOO_OLD": conditions.CRD_TOO_OLD, "AS_SPECIFIED": conditions.AS_SPECIFIED}
NAMED["PAUSED"] = conditions.PAUSED
NAMED["CANNOT_END"] = diagnosis.CANNOT_END
PASSED_ON = {"plan.rollout.phase", "failing.reason", "failure.reason", "facts.problems[0].reason", "old['reason']"}
PASSED_ON |= {
    "progressing.reason",
    "reverted.reason",
    "cause.reason",
    "reason",
    "now['reason']",
    "change.reason",
    "broken.cause",
}
"""Expressions whose reason is written elsewhere."""
PLACES = {"_Outcome": 1, "Diagnosis": 0, "found": 1, "Event": 0}
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


def reasons_of_degraded() -> set[str]:
    """The reasons of the condition Degraded."""
    found = {failure.reason for failure in engine_log.FAILURES}
    found |= reasons(problems, "Diagnosis") | reasons(diagnosis, "Diagnosis") | reasons(diagnosis, "found")
    found |= {reason for module in (image_pulls, refusals, scheduling) for reason in reasons(module, "found")}
    found |= {conditions.NOTHING_FOUND, causes.INVALID, conditions.CRD_TOO_OLD}
    return found - {"Loading", "Queued"}  # what only takes time is in the message of Progressing
