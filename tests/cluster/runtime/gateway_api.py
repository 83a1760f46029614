"""The real CRDs of the Gateway API in a test cluster."""

import contextlib
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdx_api.kube.kinds import HTTP_ROUTE
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.programs.gateway_api import gateway_api_crds
from tests.cluster.runtime.harness import Api, eventually

KINDS = ("gateways", "httproutes")
ROUTE: dict[str, Any] = {"parentRefs": [{"name": "public", "namespace": "infra"}], "hostnames": ["llm.example.com"]}


@contextlib.contextmanager
def gateway_api(cluster: Cluster) -> Iterator[None]:
    """The CRDs of Gateways and HTTPRoutes for the length of a block; a skip where their Go module cannot be had."""
    try:
        files = [path for path in gateway_api_crds() if _kind(path) in KINDS]
    except (MissingError, ClusterError) as error:
        pytest.skip(f"no Gateway API: {error}")
    assert len(files) == len(KINDS)
    # They are too large for kubectl's annotation.
    cluster.kubectl("apply", "--server-side", *(f"--filename={path}" for path in files))
    eventually(lambda: _is_served(Api(cluster)), what="HTTPRoutes served")
    try:
        yield
    finally:
        cluster.kubectl("delete", *(f"--filename={path}" for path in files), "--wait")


def _kind(path: Path) -> str:
    return path.stem.rpartition("_")[2]


def _is_served(api: Api) -> bool:
    with contextlib.suppress(urllib.error.HTTPError):
        api.items(HTTP_ROUTE, None)
        return True
    return False
