"""Real vLLM engines as pods: the first steps of `make cluster-e2e`, which goes further.

The other breaks, and every repair, replace engines. They are for `make soak` and `make cluster-e2e`.
"""

import pytest

from pdx_cluster.app.cluster import Cluster
from tests.cluster.tiny import blocked, steps, verified
from tests.cluster.tiny.scene import Scene


@pytest.mark.timeout(1200)
def test_the_example_serves_and_reports_broken_transfers(served_cluster: Cluster, namespace: str) -> None:
    scene = Scene(served_cluster, namespace, print)
    served = steps.serve(scene)
    assert (served.text, served.external_tokens) == (served.alone, served.prompt_tokens)
    verified.wait_until_verified(scene)
    scene.report(verified.break_only(scene, verified.EVERY_PORT))
    steps.remove(scene)


@pytest.mark.soak
def test_every_break_and_its_repair(served_cluster: Cluster, namespace: str) -> None:
    scene = Scene(served_cluster, namespace, print)
    steps.serve(scene)
    verified.wait_until_verified(scene)
    for way in verified.BREAKS:
        scene.report(verified.break_and_repair(scene, way))
    steps.remove(scene)


@pytest.mark.soak
def test_requests_are_served_whole_while_kv_is_blocked(served_cluster: Cluster, namespace: str) -> None:
    scene = Scene(served_cluster, namespace, print)
    steps.serve(scene)
    verified.wait_until_verified(scene)
    scene.report(blocked.serve_through(scene))
    steps.remove(scene)
