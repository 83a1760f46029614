"""Real vLLM engines as pods: the first steps of `make cluster-e2e`, which goes further."""

import pytest

from pdx_cluster.cluster import Cluster
from tests.cluster.tiny import steps
from tests.cluster.tiny.scene import Scene


@pytest.mark.timeout(600)
def test_the_example_serves_through_its_service_and_leaves_nothing(served_cluster: Cluster, namespace: str) -> None:
    scene = Scene(served_cluster, namespace, print)
    served = steps.serve(scene)
    assert (served.text, served.external_tokens) == (served.alone, served.prompt_tokens)
    steps.remove(scene)
