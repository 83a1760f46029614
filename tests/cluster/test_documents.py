"""What documents show is accepted by a real API server."""

import json
from typing import Any

import pytest

from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.harness import install
from tests.documents import BLOCKS


@pytest.fixture(scope="module")
def installed(control_plane: Cluster) -> Cluster:
    """The cluster with the CRD."""
    install(control_plane)
    return control_plane


@pytest.mark.parametrize("body", [pytest.param(body, id=place) for place, body in BLOCKS])
def test_a_block_of_a_document_is_accepted(installed: Cluster, namespace: str, body: dict[str, Any]) -> None:
    flags = ("--dry-run=server", "--validate=strict", "--warnings-as-errors", "-n", namespace, "--filename=-")
    installed.kubectl("apply", *flags, stdin=json.dumps(body))


def test_a_replaced_security_context_is_stored_as_it_is_written(installed: Cluster, namespace: str) -> None:
    """`$patch` means something to kubectl elsewhere."""
    body = next(body for _, body in BLOCKS if "$patch" in json.dumps(body))
    for _ in range(2):
        installed.kubectl("apply", "-n", namespace, "--filename=-", stdin=json.dumps(body))
    name = body["metadata"]["name"]
    stored = json.loads(installed.kubectl("get", "pdd", name, "-n", namespace, "--output=json"))["spec"]["decode"]
    assert stored["podTemplate"] == body["spec"]["decode"]["podTemplate"]
