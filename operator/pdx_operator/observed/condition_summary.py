"""What an object's status says, in short: for the metrics. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from pdx_api.names import ConditionType

UNKNOWN: Final = "Unknown"
_STATUSES: Final = ("True", "False")


@dataclass(frozen=True, slots=True)
class Told:
    """One condition."""

    status: str = UNKNOWN
    """True, False or Unknown."""
    reason: str = UNKNOWN
    since: float = 0.0
    """When its status last changed, in seconds since the epoch; 0 when that is not told."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One object."""

    behind: bool
    """Whether its newest spec has not been worked on to an end: the status tells of an older one, or of none."""
    conditions: Mapping[ConditionType, Told]
    """Every one, Unknown where the status names none."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Of a PDDeployment as the API server holds it."""
        status = body.get("status") or {}
        found = {condition.get("type"): _told(condition) for condition in status.get("conditions") or ()}
        return cls(
            behind=status.get("observedGeneration", 0) != body["metadata"].get("generation", 0),
            conditions={kind: found.get(kind.value, _NOTHING) for kind in ConditionType},
        )


_NOTHING: Final = Told()


def _told(condition: Mapping[str, Any]) -> Told:
    status = condition.get("status")
    try:
        since = datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
    except (KeyError, TypeError, ValueError):
        since = 0.0
    return Told(status if status in _STATUSES else UNKNOWN, str(condition.get("reason") or UNKNOWN), since)
