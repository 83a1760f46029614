"""A real Kubernetes for the tests in this folder: `control_plane`, `node_cluster`, and a `namespace` for each test."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdx_cluster import cluster, programs
from pdx_cluster.cluster import Cluster
from pdx_cluster.errors import MissingError


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the collected tests need before the first begins: a test's time limit is for the test."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items if isinstance(item, pytest.Function) for name in item.fixturenames}
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    wanted = [
        *(programs.CONTROL_PLANE if used & {"control_plane", "node_cluster"} else ()),
        *((programs.HELM,) if used & {"control_plane", "node_cluster"} else ()),
    ]
    try:
        programs.cluster_programs(wanted, lambda line: reporter.write_line(line) if reporter else None)
    except MissingError:
        return  # the fixture skips with the reason


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Kubernetes control plane without nodes: pods stay Pending, everything else is real."""
    folder = tmp_path_factory.mktemp("control-plane")
    try:
        running = cluster.up(folder, print, bound=True)
    except MissingError as error:
        pytest.skip(f"no Kubernetes control plane: {error}")
    yield running
    cluster.down(folder)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, deleted after it (not waited for); in `node_cluster` if the test uses that."""
    chosen = "node_cluster" if "node_cluster" in request.fixturenames else "control_plane"
    running: Cluster = request.getfixturevalue(chosen)
    words = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    name = f"{words}-{abs(hash(request.node.nodeid)) % 10**6:06d}"
    running.kubectl("create", "namespace", name)
    yield name
    running.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def helm_program() -> Path:
    """Helm alone, for tests that render."""
    try:
        return programs.cluster_programs([programs.HELM])["helm"]
    except MissingError as error:
        pytest.skip(f"no helm: {error}")
