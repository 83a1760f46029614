"""The notice that an operator writes into an object of another operator, as a condition. Its owner removes it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pdx_api.names import CONDITION_MANAGED


def notice_in(body: Mapping[str, Any]) -> str:
    """The notice in an object; empty without one."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((str(each.get("message")) for each in conditions if each["type"] == CONDITION_MANAGED), "")


def with_notice(status: Mapping[str, Any], message: str, generation: int, now: datetime) -> dict[str, Any]:
    """The status with a notice, and otherwise as its owner has left it."""
    condition = {
        "type": CONDITION_MANAGED,
        "status": "Unknown",
        "reason": "OwnerSilent",
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {**status, "conditions": [*without_notice(status).get("conditions", ()), condition]}


def without_notice(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status without the notice."""
    if "conditions" not in status:
        return dict(status)
    return {**status, "conditions": [each for each in status["conditions"] if each["type"] != CONDITION_MANAGED]}
