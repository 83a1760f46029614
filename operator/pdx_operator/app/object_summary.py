"""What the status of each PDDeployment reports, in short: for the metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from pdx_api.names import ConditionType
from pdx_operator.kube.resources import Body, Key

UNKNOWN: Final = "Unknown"
_STATUSES: Final = ("True", "False")


@dataclass(frozen=True, slots=True)
class ConditionSummary:
    """One condition."""

    status: str = UNKNOWN
    """True, False or Unknown."""
    reason: str = UNKNOWN
    since: float = 0.0
    """Time of the last change of its status, in seconds since the epoch; 0 when the status does not contain it."""


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """One PDDeployment."""

    behind: bool
    """Whether its newest spec has not been reconciled yet: the status is of an older spec, or empty."""
    conditions: Mapping[ConditionType, ConditionSummary]
    """All conditions, Unknown where the status lacks one."""

    @classmethod
    def of(cls, body: Body) -> Self:
        """Summarize a PDDeployment as the API server returns it."""
        status = body.get("status") or {}
        found = {condition.get("type"): _condition(condition) for condition in status.get("conditions") or ()}
        return cls(
            behind=status.get("observedGeneration", 0) != body["metadata"].get("generation", 0),
            conditions={kind: found.get(kind.value, _MISSING) for kind in ConditionType},
        )


class ObjectSummaries:
    """Owner of the summaries of all PDDeployments."""

    def __init__(self) -> None:
        self._summaries: dict[str, ObjectSummary] = {}

    def observe(self, key: Key, body: Body | None) -> None:
        """Replace the summary of an object; None: the object is deleted."""
        if body is None:
            self._summaries.pop(str(key), None)
        else:
            self._summaries[str(key)] = ObjectSummary.of(body)

    def by_name(self) -> Mapping[str, ObjectSummary]:
        """The summaries by NAMESPACE/NAME."""
        return self._summaries


_MISSING: Final = ConditionSummary()


def _condition(condition: Mapping[str, Any]) -> ConditionSummary:
    status = condition.get("status")
    try:
        since = datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
    except (KeyError, TypeError, ValueError):
        since = 0.0
    return ConditionSummary(status if status in _STATUSES else UNKNOWN, str(condition.get("reason") or UNKNOWN), since)
