"""How many engines a role has if the spec sets no number: PDX creates one, and then keeps the number that it finds.

A rollout divides the engines between revisions, and in between their sum may be larger or smaller than their number.
Until it has ended, the number is the one in the status, from before the rollout.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pdx_api.names import ConditionType, Role
from pdx_api.spec.types import Spec
from pdx_operator.kube.resources import Body
from pdx_operator.observed.workloads import ObservedPool
from pdx_operator.plan.rollout import Phase


def engine_counts(spec: Spec, revision: str, pools: Sequence[ObservedPool], status: Body) -> dict[Role, int]:
    """The desired number of engines of each role. `status` is the object's present status."""
    rolling = is_rolling(revision, pools) or _progress(status) in (Phase.ROLLING, Phase.STOPPED)
    return {
        role: _count(role, revision, pools, status, rolling) if pool.replicas is None else pool.replicas
        for role, pool in spec.pools().items()
    }


def is_rolling(revision: str, pools: Sequence[ObservedPool]) -> bool:
    """Whether engines of another revision exist."""
    return any(pool.replicas for pool in pools if pool.revision != revision)


def _count(role: Role, revision: str, pools: Sequence[ObservedPool], status: Body, rolling: bool) -> int:
    own = next((pool.replicas for pool in pools if (pool.revision, pool.role) == (revision, role)), None)
    if own is not None and not rolling:
        return own
    if (last := _last(role, status)) is not None:
        return last
    return sum(pool.replicas for pool in pools if pool.role is role and pool.revision != revision) or own or 1


def _last(role: Role, status: Body) -> int | None:
    """The number in the status."""
    roles: Sequence[Mapping[str, Any]] = status.get("roles") or ()
    found = next((each.get("desiredReplicas") for each in roles if each.get("role") == role), None)
    return found if isinstance(found, int) else None


def _progress(status: Body) -> str:
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return next((str(each.get("reason")) for each in conditions if each.get("type") == ConditionType.PROGRESSING), "")
