"""Real vLLM engines as pods: the first steps of `make cluster-e2e`, which goes further."""

from pathlib import Path

import pytest

from images.build import BuildError
from pdx_cluster.cluster import Cluster
from tests.cluster.tiny import steps
from tests.cluster.tiny.scene import Scene


@pytest.mark.timeout(600)
def test_the_example_serves_through_its_service_and_leaves_nothing(
    node_cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    try:
        steps.prepare(tmp_path)
    except BuildError as error:
        pytest.skip(str(error))
    steps.load_images(node_cluster, tmp_path)
    steps.install(node_cluster, steps.FIRST)
    scene = Scene(node_cluster, namespace, print)
    served = steps.serve(scene)
    assert (served.text, served.external_tokens) == (served.alone, served.prompt_tokens)
    steps.remove(scene)
    node_cluster.helm("uninstall", steps.RELEASE, "--namespace", steps.SYSTEM, "--wait")
