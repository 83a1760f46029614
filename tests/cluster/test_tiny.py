"""Real vLLM engines as pods: the first steps of `make cluster-e2e`, which goes further."""

import pytest

from pdx_cluster.app.cluster import Cluster
from tests.cluster.tiny import steps, verified
from tests.cluster.tiny.scene import Scene

SHORT = (verified.SIDE_CHANNEL,)
"""The others are for `make soak` and `make cluster-e2e`."""


@pytest.mark.timeout(1200)
def test_the_example_serves_tells_of_kv_that_does_not_travel_and_leaves_nothing(
    served_cluster: Cluster, namespace: str
) -> None:
    scene = Scene(served_cluster, namespace, print)
    served = steps.serve(scene)
    assert (served.text, served.external_tokens) == (served.alone, served.prompt_tokens)
    verified.wait_until_verified(scene)
    for way in SHORT:
        scene.report(verified.broken_and_mended(scene, way))
    steps.remove(scene)


@pytest.mark.soak
def test_what_else_keeps_kv_from_travelling(served_cluster: Cluster, namespace: str) -> None:
    scene = Scene(served_cluster, namespace, print)
    steps.serve(scene)
    verified.wait_until_verified(scene)
    for way in verified.BREAKS:
        if way not in SHORT:
            scene.report(verified.broken_and_mended(scene, way))
    steps.remove(scene)
