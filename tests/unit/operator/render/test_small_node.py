"""A PDDeployment without requests rolls over on a node of two cores, by what its rendered pods request."""

from fractions import Fraction
from typing import Any

import pytest

from pdx_api.connectors import CONNECTORS
from pdx_api.names import LABEL_REVISION
from pdx_api.quantities import quantity
from pdx_api.spec.types import PDDeployment
from pdx_operator.plan.rollout import Budget, allowance
from tests.small_node import CORES, SYSTEM_CORES, operator_deployment
from tests.unit.operator.render.manifests_of import Manifest, deployment_of, manifests_of, pod_of

PAIR: dict[str, Any] = {"prefill": {}, "decode": {}}
MEMORY = 8 * 2**30
"""Of a small node, and it is enough unless a connector has a pool."""


def _requested(pod: Manifest, resource: str) -> Fraction:
    """What a pod requests: its containers together, and its sidecars."""
    containers = [*pod["containers"], *pod.get("initContainers", ())]
    requests = [container["resources"].get("requests", {}).get(resource, 0) for container in containers]
    return sum((quantity(each) or Fraction(0) for each in requests), Fraction(0))


def _most_pods(manifest: Manifest, deployment: PDDeployment) -> int:
    """The most pods of a Deployment and of its next revision together, while engines and gateways are replaced."""
    replicas, rollout = manifest["spec"].get("replicas", 1), deployment.spec.rollout
    if LABEL_REVISION in manifest["metadata"]["labels"]:
        is_engine = "rollingUpdate" in manifest["spec"]["strategy"]
        surge = allowance(Budget(rollout.max_surge, rollout.max_unavailable), replicas).surge
        return int(replicas + (surge if is_engine else replicas))
    return int(replicas + manifest["spec"]["strategy"]["rollingUpdate"]["maxSurge"])


def _peak(deployment: PDDeployment, resource: str) -> Fraction:
    """What the pods of a PDDeployment and the operator request at most."""
    children = [each for each in manifests_of(deployment) if each["kind"] == "Deployment"]
    pods = [(pod_of(each), _most_pods(each, deployment)) for each in children]
    return sum((_requested(pod, resource) * most for pod, most in pods), _requested(_operator(), resource))


def _operator() -> Manifest:
    manifest = operator_deployment()
    assert (manifest["spec"]["replicas"], manifest["spec"]["strategy"]) == (1, {"type": "Recreate"})
    return pod_of(manifest)


NEEDS_MORE = ("Custom", "SharedStorage")
"""Connectors that need more fields, none of which changes what pods request."""
CONNECTED = [{**PAIR, "kvTransfer": {"connector": name}} for name in CONNECTORS if name not in NEEDS_MORE]
AGGREGATED: dict[str, Any] = {"mode": "Aggregated", "aggregated": {}, "prefill": None, "decode": None}


@pytest.mark.parametrize("spec", [*CONNECTED, AGGREGATED])
def test_a_rollout_finds_room_on_two_cores(spec: dict[str, Any]) -> None:
    assert _peak(deployment_of(**spec), "cpu") <= CORES - SYSTEM_CORES


def test_the_default_requests_of_a_pair_and_the_operator() -> None:
    pair = deployment_of(**PAIR)
    assert _peak(pair, "cpu") == Fraction("0.9")
    assert _peak(pair, "memory") < MEMORY
