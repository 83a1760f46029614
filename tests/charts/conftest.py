"""What the chart's tests share. The control plane is their own: releases own the CRD, which is one for a cluster."""

import json
from collections.abc import Iterator

import pytest

from pdx_api.names import GATEWAY_ROLE
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.system.processes import wait_until
from tests.charts.chart import CRD, NAMESPACE, Chart
from tests.cluster.conftest import helm_program, namespace, pytest_collection_finish, running

__all__ = ["chart", "control_plane", "helm_program", "namespace", "pytest_collection_finish"]


@pytest.fixture(scope="package")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Kubernetes control plane without nodes, for as long as the chart is tested."""
    with running(tmp_path_factory.mktemp("chart") / "state", audited=True) as begun:
        yield begun


@pytest.fixture
def chart(request: pytest.FixtureRequest) -> Chart:
    """The chart, rendered by helm without a cluster."""
    return Chart(request.getfixturevalue("helm_program"))


@pytest.fixture(scope="package")
def prepared(control_plane: Cluster) -> Cluster:
    """A cluster with the namespaces that releases are put into; PDX's accepts only what is restricted."""
    for name in (NAMESPACE, "team-a", "team-b"):
        control_plane.kubectl("create", "namespace", name)
    control_plane.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    return control_plane


@pytest.fixture
def cluster(prepared: Cluster) -> Iterator[Cluster]:
    """A cluster without PDX."""
    yield prepared
    for release in json.loads(prepared.helm("list", "--namespace", NAMESPACE, "--output", "json")):
        prepared.helm("uninstall", release["name"], "--namespace", NAMESPACE)
    # Releases leave it: running gateways need it.
    prepared.kubectl("delete", "clusterrole", GATEWAY_ROLE, "--ignore-not-found")
    for name in ("team-a", "team-b"):
        prepared.kubectl("delete", "role", GATEWAY_ROLE, "--namespace", name, "--ignore-not-found")
    prepared.kubectl("delete", CRD, "--ignore-not-found", "--wait=false")
    # The API server serves the CRD's objects a moment longer than the CRD, and refuses them.
    name = CRD.partition("/")[2]
    crd, objects = f"apiextensions.k8s.io/v1/customresourcedefinitions/{name}", "pdx.dev/v1alpha1/pddeployments"
    assert wait_until(lambda: all(_is_absent(prepared, f"/apis/{path}") for path in (crd, objects)), 90)


def _is_absent(cluster: Cluster, path: str) -> bool:
    try:
        cluster.get(path)
    except OSError as error:
        return ": 404 " in str(error)
    return False
