"""The facts that a PDDeployment's status is built from, collected from one reconcile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pdx_api.names import Role
from pdx_api.spec.types import PDDeployment
from pdx_operator.kube.resources import Snapshot
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.observed.workloads import ObservedGateway, ObservedPool, PodInspection
from pdx_operator.plan.operations import Problem, RevertedChange
from pdx_operator.plan.reconcile_plan import Plan
from pdx_operator.plan.rollout import RolloutPlan
from pdx_operator.status.diagnosis import Diagnosis
from pdx_operator.status.problems import problems_of


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about an object after one reconcile."""

    generation: int
    namespace: str
    deployment: PDDeployment | None
    """None when the spec is invalid."""
    invalid: str = ""
    """Then a sentence that explains why."""
    rollout: RolloutPlan | None = None
    pools: Sequence[ObservedPool] = ()
    gateway: ObservedGateway | None = None
    problems: Sequence[Diagnosis] = ()
    """The most important problem first."""
    transfer: TransferReport = field(default_factory=TransferReport)
    engines: Mapping[Role, int] = field(default_factory=dict)
    """The desired number of engines of each role."""
    gateway_waits: bool = False
    """Its gateway is replaced after those of other objects."""
    inspected: bool = True
    """Whether pods were inspected. If not, the last diagnosis stays."""


def facts_of(
    snapshot: Snapshot,
    plan: Plan,
    inspection: PodInspection,
    transfer: TransferReport,
    now: datetime,
    *,
    rejected: Sequence[Problem] = (),
    reverted: Sequence[RevertedChange] = (),
) -> Facts:
    """Collect the facts; `rejected` are writes that failed, `reverted` are writes that did not last."""
    metadata = snapshot.body["metadata"]
    return Facts(
        generation=metadata["generation"],
        namespace=metadata["namespace"],
        deployment=plan.deployment,
        invalid=plan.invalid,
        rollout=plan.rollout,
        pools=tuple(plan.workloads.pools.values()),
        gateway=plan.workloads.gateway,
        problems=problems_of(plan, inspection, now, rejected=rejected, reverted=reverted),
        transfer=transfer,
        engines=plan.engines,
        gateway_waits=plan.gateway_waits,
        inspected=inspection.done,
    )
