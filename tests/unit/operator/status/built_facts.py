"""Facts about an object, for tests of its status."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pdx_api.names import Role
from pdx_api.spec.parse import parse
from pdx_api.spec.types import PDDeployment
from pdx_operator.kube.resources import ChildKey
from pdx_operator.observed.workloads import ObservedGateway, ObservedPool, Workloads
from pdx_operator.plan.reconcile_plan import Plan
from pdx_operator.plan.rollout import Budget, plan_rollout
from pdx_operator.status.facts import Facts

P, D, A = Role.PREFILL, Role.DECODE, Role.AGGREGATED
NOW = datetime.fromisoformat("2026-05-04T12:00:00Z")
LATER = NOW + timedelta(minutes=3)
GATEWAY = ObservedGateway(1, 1, True)


def deployment(prefill: int = 1, decode: int = 1, **spec: Any) -> PDDeployment:
    pools = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    body = {"model": {"name": "m"}, **pools, **spec}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": {"name": "x"}, "spec": body})


def pool(role: Role, revision: str, replicas: int, ready: int) -> ObservedPool:
    return ObservedPool(f"x-{role}-{revision}", role, revision, replicas, ready, True, replicas, proven=True)


PAIR = (pool(P, "a", 1, 1), pool(D, "a", 1, 1))


def facts(
    *pools: ObservedPool, of: PDDeployment | None = None, gateway: ObservedGateway | None = GATEWAY, **more: Any
) -> Facts:
    of = of or deployment()
    desired = {role: 1 if pool.replicas is None else pool.replicas for role, pool in of.spec.pools().items()}
    step = plan_rollout("a", desired, pools, Budget())
    workloads = Workloads({ChildKey("Deployment", pool.name): pool for pool in pools}, gateway)
    found = Facts(generation=2, namespace="ns", plan=Plan(of, rollout=step, workloads=workloads))
    return replace(found, **more)


def outcomes(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
