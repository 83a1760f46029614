"""The facts that a PDDeployment's status is built from, collected from one reconcile."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pdx_operator.kube.resources import Snapshot
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.observed.workloads import PodInspection
from pdx_operator.plan.operations import Problem, RevertedChange
from pdx_operator.plan.reconcile_plan import Plan
from pdx_operator.status.diagnosis import Diagnosis
from pdx_operator.status.problems import problems_of


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about an object after one reconcile."""

    generation: int
    namespace: str
    plan: Plan
    """The plan in force, with the children that it was made from."""
    problems: Sequence[Diagnosis] = ()
    """The most important problem first."""
    transfer: TransferReport = field(default_factory=TransferReport)
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
        plan=plan,
        problems=problems_of(plan, inspection, now, rejected=rejected, reverted=reverted),
        transfer=transfer,
        inspected=inspection.done,
    )
