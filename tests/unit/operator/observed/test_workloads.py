"""What the operator reads from pods and Deployments."""

import pytest

from pdx_api.names import LABEL_REVISION, LABEL_ROLE
from pdx_operator.observed.workloads import ObservedGateway, _ending, observe_gateway, observe_pool, pod_view


def test_the_delay_counts_from_the_pods_node() -> None:
    body = {"status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "t"}]}}
    assert pod_view({**body, "metadata": {"creationTimestamp": "earlier"}}).placed == "t"


def test_missing_fields_have_kubernetes_meaning() -> None:
    assert observe_gateway({}) == ObservedGateway(replicas=1, ready=0, settled=False)
    assert observe_pool({"metadata": {"labels": {LABEL_ROLE: "gateway"}}}) is None


def test_a_deployment_is_settled_once_its_controller_has_caught_up() -> None:
    status = {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}
    body = {"metadata": {"generation": 3}, "spec": {"replicas": 2}, "status": status}
    assert observe_gateway(body) == ObservedGateway(replicas=2, ready=1, settled=True)
    assert not observe_gateway(body | {"metadata": {"generation": 4}}).settled
    assert not observe_gateway(body | {"status": status | {"updatedReplicas": 1}}).settled


@pytest.mark.parametrize(
    ("surge", "replicas", "updated", "surging"),
    [("25%", 2, 1, True), (1, 2, 1, True), ("25%", 1, 1, False), (0, 2, 1, False), ("0%", 2, 1, False)],
)
def test_surging_in_place_is_detected(surge: int | str, replicas: int, updated: int, surging: bool) -> None:
    state = observe_pool(
        {
            "metadata": {"name": "x", "labels": {LABEL_ROLE: "decode", LABEL_REVISION: "a"}},
            "spec": {"replicas": 1, "strategy": {"rollingUpdate": {"maxSurge": surge}}},
            "status": {"replicas": replicas, "updatedReplicas": updated},
        }
    )
    assert state is not None
    assert state.surging is surging


def test_a_termination_message_is_bounded() -> None:
    ending = _ending({"exitCode": 1, "message": "a\n" * 100_000 + "end"})
    assert ending is not None
    assert (ending.message.count("\n"), ending.message[-3:]) == (149, "end")
