"""A stranger's first minutes on a cluster: the packaged chart with its default values, and images that the node has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from images import build
from pdx_cluster.app.cluster import Cluster
from scripts.release.manifests import package_chart
from scripts.release.names import IMAGES, read
from tests.cluster.tiny import objects, steps
from tests.cluster.tiny.scene import Scene

NAMES = read(objects.CHECKOUT)

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def released(
    cluster_with_images: Cluster, helm_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """The cluster, whose node has the images under the names of the release, and the packaged chart installed."""
    assert cluster_with_images.node is not None
    registry = build.published_registry(objects.CHECKOUT)
    for image in IMAGES:
        loaded = f"{registry}/pdx/{image}:{steps.FIRST}"
        cluster_with_images.node.ctr("images", "tag", "--force", loaded, NAMES.image(image))
    chart = package_chart(helm_program, tmp_path_factory.mktemp("chart"), 1_700_000_000)
    place = ("--namespace", steps.SYSTEM, "--create-namespace")
    cluster_with_images.helm("install", steps.RELEASE, str(chart), *place)
    yield cluster_with_images
    cluster_with_images.helm("uninstall", steps.RELEASE, "--namespace", steps.SYSTEM, "--wait")


def test_helm_test_passes(released: Cluster) -> None:
    output = released.helm("test", steps.RELEASE, "--namespace", steps.SYSTEM, timeout_seconds=300)
    assert "Phase:          Succeeded" in output


def test_a_pair_becomes_ready_and_answers(released: Cluster, namespace: str) -> None:
    scene = Scene(released, namespace, print)
    served = steps.serve(scene)
    assert (served.text, served.external_tokens) == (served.alone, served.prompt_tokens)
    steps.remove(scene)
