"""What stands in the way of an object, as its status says it."""

from dataclasses import replace
from datetime import datetime

import pytest

from pdx_api.names import Role
from pdx_operator.controller import status_writer
from pdx_operator.controller.applier import Problem
from pdx_operator.controller.pod_inspector import Look
from pdx_operator.controller.write_backoff import Sifted, Undone
from pdx_operator.kube.cache import ChildKey
from pdx_operator.observed.workloads import PodView, PoolState
from pdx_operator.plan.reconcile_plan import Decision

NOW = datetime.fromisoformat("2026-05-04T12:00:00Z")
CHILD = ChildKey("Deployment", "m-gateway")
POOL = PoolState("x", Role.DECODE, "a", 1, 1, False, 2)
WAITING = PodView("p", "decode", "a", ready=False, unschedulable="0/1 nodes are available: 1 Insufficient gpu/x.")


@pytest.mark.parametrize("surging", [False, True])
def test_a_rollout_in_place_that_finds_no_device_is_told_its_remedy(surging: bool) -> None:
    sifted = Sifted(Decision(None, pools=(replace(POOL, surging=surging),)))
    cause = status_writer._troubles(sifted, Look((WAITING,)), NOW)[0]
    assert ("spec.rollout.maxSurge: 0" in cause.message) is surging


def test_what_cannot_be_written_comes_first_and_what_is_undone_last() -> None:
    sifted = Sifted(
        Decision(None, pools=(POOL,)), problems=(Problem(CHILD, "words"),), undone=(Undone(CHILD, "spec.x"),)
    )
    troubles = status_writer._troubles(sifted, Look((WAITING,)), NOW)
    assert [(t.reason, t.failing) for t in troubles] == [
        ("ChildRefused", True),
        ("Unschedulable", True),
        ("ChangedBack", False),
    ]
    assert troubles[2].message.startswith("spec.x of Deployment m-gateway is changed back by somebody")


def test_a_child_that_is_deleted_again_and_again_is_named() -> None:
    found = status_writer._troubles(Sifted(Decision(None), undone=(Undone(CHILD, ""),)), Look(), NOW)
    assert found[0].message.startswith("Deployment m-gateway is deleted again by somebody")
