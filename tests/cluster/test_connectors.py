"""Examples of connectors as pods: the files that `pdx up` runs are applied.

With real engines, they run in `make soak`. test_tiny.py always runs such pods with NIXL, and engines/ runs the same
connectors and side services without pods.
"""

import pytest

from pdx_cluster.app.cluster import Cluster
from tests.cluster import connectors
from tests.cluster.tiny.scene import Scene
from tests.engines.support import mooncake

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(autouse=True)
def needs_mooncake() -> None:
    """Skip where Mooncake's libraries are missing."""
    try:
        mooncake.libraries()
    except ImportError as error:
        pytest.skip(str(error))


def test_a_side_service_answers_through_its_service(served_cluster: Cluster, namespace: str) -> None:
    connectors.reach_service(Scene(served_cluster, namespace, print, "lmcache"))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["lmcache", "mooncake", "lmcache-p2p"])
def test_an_example_moves_whole_prompts_and_leaves_nothing(name: str, served_cluster: Cluster, namespace: str) -> None:
    found = connectors.prove(Scene(served_cluster, namespace, print, name))
    assert found.text == found.alone
    assert found.external_tokens >= connectors.LENGTH - 1
