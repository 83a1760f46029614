"""The CRD in the cluster, the operator's own identity, and the operator as a process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.harness import Api, Operator, grant, install

StartOperator = Callable[..., Operator]


@pytest.fixture(scope="session")
def identity(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubeconfig of the operator's service account, in a cluster that has the CRD."""
    install(control_plane)
    return grant(control_plane, tmp_path_factory.mktemp("operator"))


@pytest.fixture
def api(control_plane: Cluster, identity: Path) -> Api:
    """The administrator."""
    return Api(control_plane)


@pytest.fixture
def start_operator(identity: Path, namespace: str, tmp_path: Path) -> Iterator[StartOperator]:
    """Starts an operator for the test's namespace, or with other flags; ended after the test."""
    started: list[Operator] = []

    def start(*flags: str) -> Operator:
        operator = Operator.start(identity, tmp_path, *(flags or ("--namespace", namespace)))
        started.append(operator)
        return operator.wait_until_working()

    yield start
    for operator in started:
        operator.end()
        text = operator.text()
        assert "Traceback" not in text, text


@pytest.fixture
def operator(start_operator: StartOperator) -> Operator:
    """A running operator for the test's namespace."""
    return start_operator()
