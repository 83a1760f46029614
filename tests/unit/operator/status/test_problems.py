"""The problems of an object, in order of importance."""

from dataclasses import replace
from datetime import datetime

import pytest

from pdx_api.names import Role
from pdx_operator.kube.resources import ChildKey
from pdx_operator.observed.workloads import ObservedPool, PodInspection, PodView, Workloads
from pdx_operator.plan.operations import Problem, RevertedChange
from pdx_operator.plan.reconcile_plan import Plan
from pdx_operator.status.problems import problems_of

NOW = datetime.fromisoformat("2026-05-04T12:00:00Z")
CHILD = ChildKey("Deployment", "m-gateway")
POOL = ObservedPool("x", Role.DECODE, "a", 1, 1, False, 2)
WAITING = PodView("p", "decode", "a", ready=False, unschedulable="0/1 nodes are available: 1 Insufficient gpu/x.")


def _plan(pool: ObservedPool) -> Plan:
    return Plan(None, workloads=Workloads({ChildKey("Deployment", pool.name): pool}))


@pytest.mark.parametrize("surging", [False, True])
def test_a_rollout_without_a_free_device_names_the_remedy(surging: bool) -> None:
    cause = problems_of(_plan(replace(POOL, surging=surging)), PodInspection((WAITING,)), NOW)[0]
    assert ("spec.rollout.maxSurge: 0" in cause.message) is surging


def test_rejected_writes_come_first_and_reverted_ones_last() -> None:
    problems = problems_of(
        _plan(POOL),
        PodInspection((WAITING,)),
        NOW,
        rejected=[Problem(CHILD, "invalid")],
        reverted=[RevertedChange(CHILD, "spec.x")],
    )
    assert [(problem.reason, problem.failing) for problem in problems] == [
        ("ChildRejected", True),
        ("Unschedulable", True),
        ("ChildReverted", False),
    ]
    assert problems[2].message.startswith("spec.x of Deployment m-gateway is changed back by another writer")


def test_a_repeatedly_deleted_child_is_named() -> None:
    found = problems_of(Plan(None), PodInspection(), NOW, reverted=[RevertedChange(CHILD, "")])
    assert found[0].message.startswith("Deployment m-gateway is deleted again by another writer")


def test_a_cluster_without_the_gateway_api_is_named() -> None:
    route = ChildKey("HTTPRoute", "m-gateway")
    found = problems_of(Plan(None), PodInspection(), NOW, rejected=[Problem(route, "HTTP 404")])
    assert found[0].reason == "GatewayAPIMissing"
    other = problems_of(Plan(None), PodInspection(), NOW, rejected=[Problem(route, "spec.hostnames: Invalid value")])
    assert other[0].reason == "ChildRejected"
