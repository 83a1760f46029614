"""The problems of an object: writes that fail, pods that do not start, changes that do not last."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pdx_api.kube.kinds import HTTP_ROUTE
from pdx_api.names import Role
from pdx_operator.kube.resources import ChildKey
from pdx_operator.observed.workloads import PodInspection
from pdx_operator.plan.operations import Problem, RevertedChange
from pdx_operator.plan.reconcile_plan import Plan
from pdx_operator.plan.rollout import Phase
from pdx_operator.render.spec_fields import field_of
from pdx_operator.status.diagnosis import Diagnosis, diagnose

_NOT_SERVED: Final = "HTTP 404"
"""Of a kind that the API server does not serve: unlike a missing object it has no message."""


def problems_of(
    plan: Plan,
    inspection: PodInspection,
    now: datetime,
    *,
    rejected: Sequence[Problem] = (),
    reverted: Sequence[RevertedChange] = (),
) -> list[Diagnosis]:
    """Writes that fail first, then pods that are not ready, then reverted changes."""
    writes = [*(Problem(key, "") for key in plan.foreign), *rejected]
    pods = _unready_pods(plan, inspection, now)
    stopped = plan.rollout if plan.rollout is not None and plan.rollout.phase is Phase.STOPPED else None
    return [
        *(rejected_child(problem.child, problem.message) for problem in writes),
        *([Diagnosis("RolloutStopped", stopped.message)] if stopped is not None else []),
        *([pods] if pods is not None else []),
        *(reverted_child(change.child, change.path) for change in reverted),
    ]


def rejected_child(child: ChildKey, message: str) -> Diagnosis:
    """A child that cannot be written. `message` is the API server's; empty when a foreign object has the name."""
    if not message:
        text = f"a {child} exists that belongs to another owner; delete it, or rename this PDDeployment"
        return Diagnosis("NameTaken", text)
    if child.kind == HTTP_ROUTE.name and message == _NOT_SERVED:
        text = "the cluster serves no HTTPRoutes; install the CRDs of the Gateway API, or leave out "
        return Diagnosis("GatewayAPIMissing", f"{text}spec.gateway.httpRoute")
    return Diagnosis("ChildRejected", f"the API server refuses {child}: {' '.join(message.split())[:600]}")


def reverted_child(child: ChildKey, path: str) -> Diagnosis:
    """A child that does not stay as it is applied. `path` is the field; empty when the child is deleted."""
    change = f"{path} of {child} is changed back" if path else f"{child} is deleted again"
    text = f"{change} by another writer (a default, a policy, a controller); adapt the spec, or stop that writer"
    return Diagnosis("ChildReverted", text, failing=False)


def _unready_pods(plan: Plan, inspection: PodInspection, now: datetime) -> Diagnosis | None:
    workloads, deployment = plan.workloads, plan.deployment
    pools = tuple(workloads.pools.values())
    surges = plan.rollout is not None and plan.rollout.surges
    return diagnose(
        pools,
        workloads.gateway,
        inspection.pods,
        inspection.logs,
        now=now,
        may_use_surge=surges or any(pool.surging for pool in pools),
        fields={role: field_of(deployment.spec, role) for role in Role} if deployment else {},
        services=workloads.services,
    )
