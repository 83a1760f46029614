"""Pods that have ended, pods that cannot end, and pods that wait for their queue."""

from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import LABEL_REVISION, LABEL_ROLE
from pdx_operator.observed.workloads import ObservedGateway, PodView, pod_view
from pdx_operator.status.diagnosis import Diagnosis, diagnose, logs_to_read
from tests.unit.operator.status.pods import CRASH, NO_GPU, NOW, ended, pod, pool, running

LAST_WEEK = "2026-04-27T09:00:00Z"
JUST_NOW = "2026-05-04T11:58:00Z"
LOADING: dict[str, Any] = {"state": running("2026-05-04T11:59:00Z")}


def evicted(number: int, created: str = LAST_WEEK, **more: Any) -> PodView:
    """A pod that a controller no longer counts."""
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    return pod(number, created=created, **{**status, **more})


def found_for(*pods: PodView, replicas: int = 1, **more: Any) -> Diagnosis | None:
    return diagnose([pool(replicas=replicas)], more.pop("gateway", None), pods, {}, now=NOW, **more)


def test_pods_of_last_week_do_not_explain_a_start_of_today() -> None:
    found = found_for(evicted(1), pod(2, **LOADING))
    assert found == Diagnosis("Loading", "the prefill engine: it is starting", failing=False, waits=True)


def test_neither_do_they_after_a_scale_up() -> None:
    new = pod(3)  # not placed yet, so without any cause
    ready = pod_view(
        {
            "metadata": {"name": "r", "labels": {LABEL_ROLE: "prefill", LABEL_REVISION: "a"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
    )
    assert found_for(evicted(1), ready, new, replicas=2) is None


def test_those_of_a_revision_that_is_gone_are_ignored() -> None:
    assert found_for(replace(evicted(1), revision="old"), pod(2)) is None


def test_gateways_that_nodes_left_behind_are_not_counted() -> None:
    left = [evicted(n, role="gateway", reason="Terminated") for n in range(20)]
    starting = pod(20, role="gateway", **LOADING)
    found = diagnose([], ObservedGateway(1, 0, True), [*left, starting], {}, now=NOW)
    assert found == Diagnosis("Loading", "the gateway: it is starting", failing=False, waits=True)


def test_a_crash_shows_among_hundreds_that_have_ended() -> None:
    lost = [evicted(n, reason="UnexpectedAdmissionError") for n in range(320)]
    found = found_for(*lost, pod(999, state=CRASH, last=ended("ValueError: boom")))
    assert found == Diagnosis("Crashing", "the prefill engine: it ends with exit code 1, saying: ValueError: boom")


def test_a_pod_that_ended_well_on_a_spot_node_is_no_crash() -> None:
    done = pod(1, phase="Succeeded", state=ended("", 0, "Completed"), created=LAST_WEEK)
    found = found_for(done, pod(2, unschedulable=NO_GPU))
    assert found is not None
    assert found.reason == "Unschedulable"
    assert logs_to_read([replace(done, phase="Failed")]) == ()


@pytest.mark.parametrize(
    "pods",
    [(evicted(1),), (evicted(1, JUST_NOW, reason="UnexpectedAdmissionError"), pod(2))],
    ids=["without a successor", "just now"],
)
def test_the_last_end_is_reported_where_it_explains_what_is_missing(pods: tuple[PodView, ...]) -> None:
    found = found_for(evicted(0, reason="Shutdown"), *pods)
    assert found is not None
    assert found.reason in ("Evicted", "UnexpectedAdmissionError")
    assert found.message.endswith(f"its node does not run it ({found.reason}): The node was low on resource: memory")


def terminating(until: str, *, ready: bool = False, node: str = "n7") -> PodView:
    condition = {"type": "Ready", "status": str(ready)}
    metadata = {"name": "old-1", "labels": {LABEL_ROLE: "decode", LABEL_REVISION: "old"}, "deletionTimestamp": until}
    return pod_view({"metadata": metadata, "spec": {"nodeName": node}, "status": {"conditions": [condition]}})


@pytest.mark.parametrize("ready", [True, False])
def test_a_pod_that_cannot_end_is_named_with_its_node(ready: bool) -> None:
    assert diagnose([], None, [terminating("2026-05-04T11:59:30Z", ready=ready)], {}, now=NOW) is None
    found = diagnose([], None, [terminating("2026-05-04T11:58:00Z", ready=ready)], {}, now=NOW)
    assert found == Diagnosis(
        "PodCannotEnd",
        "the decode engine: the pod old-1 should have ended by 2026-05-04T11:58:00Z; if its node n7 is NotReady, "
        "repair or delete the node, otherwise kubectl delete pod old-1 --force",
    )


def test_it_comes_before_the_devices_that_it_holds_and_after_a_crash() -> None:
    stuck = terminating("2026-05-04T11:50:00Z")
    found = [found_for(stuck, pod(unschedulable=NO_GPU)), found_for(stuck, pod(state=CRASH, last=ended("boom")))]
    assert [each and each.reason for each in found] == ["PodCannotEnd", "Crashing"]


def test_a_pod_behind_a_scheduling_gate_waits_and_is_no_failure() -> None:
    gate = "Scheduling is blocked due to non-empty scheduling gates"
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": gate}
    view = pod_view(
        {
            "metadata": {"name": "q", "labels": {LABEL_ROLE: "prefill", LABEL_REVISION: "a"}},
            "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
            "status": {"phase": "Pending", "conditions": [condition]},
        }
    )
    found = found_for(view)
    text = (
        "the prefill engine: it waits for its queue (scheduling gate kueue.x-k8s.io/admission); kubectl describe "
        "workload shows why Kueue does not admit it: free or raise the quota of its ClusterQueue"
    )
    assert found == Diagnosis("Queued", text, failing=False, waits=True)
