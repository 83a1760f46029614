"""A real Kubernetes for the tests in this folder, in three sizes, and a `namespace` for each test."""

import contextlib
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdx_cluster.app import cluster, kwok
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.programs import kubernetes, packages
from tests.cluster.tiny import steps
from tests.group_end import at_group_end

NEEDS = {
    "control_plane": (*kubernetes.CONTROL_PLANE, kubernetes.HELM),
    "simulated_cluster": (*kubernetes.CONTROL_PLANE, kubernetes.HELM, kubernetes.KWOK),
    "node_cluster": (*kubernetes.CONTROL_PLANE, *kubernetes.NODE, kubernetes.HELM),
    "helm_program": (kubernetes.HELM,),
}
"""Fixture -> the programs it takes."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the collected tests need before the first begins: a test's time limit is for the test."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items if isinstance(item, pytest.Function) for name in item.fixturenames}
    capture = session.config.pluginmanager.getplugin("capturemanager")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            sys.stderr.write(f"{line}\n")  # a worker of pytest-xdist can write nowhere else

    with contextlib.suppress(ClusterError):  # the fixture skips or fails with the reason
        for fixture in sorted(NEEDS.keys() & used):
            kubernetes.cluster_programs(NEEDS[fixture], report)


@contextlib.contextmanager
def running(folder: Path, *, with_node: bool = False, audited: bool = False) -> Iterator[Cluster]:
    """A cluster that ends with the group of its tests, or with their process; a skip where it cannot be had."""
    try:
        begun = cluster.up(folder, print, with_node=with_node, bound=True, audited=audited)
    except MissingError as error:
        pytest.skip(f"no Kubernetes: {error}")
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.down, folder)
        at_group_end(stack.close)
        yield begun


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Kubernetes control plane without nodes: pods stay Pending, everything else is real."""
    with running(tmp_path_factory.mktemp("control-plane") / "state", audited=True) as begun:
        yield begun


@pytest.fixture(scope="module")
def simulated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with three simulated nodes: pods become Ready at once and run nothing."""
    with running(tmp_path_factory.mktemp("simulated") / "state") as begun:
        kwok.start(begun, 3, print)
        yield begun


@pytest.fixture(scope="session")
def node_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Kubernetes with a node that runs containers; `node_cluster.node` imports their images."""
    with running(tmp_path_factory.mktemp("node") / "state", with_node=True) as begun:
        yield begun


@pytest.fixture(scope="session")
def cluster_with_images(node_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The cluster with the engine's, the operator's and the gateway's images."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    try:
        packages.require(packages.IMAGE_COMMANDS, print)
    except MissingError as error:
        pytest.skip(f"images cannot be built: {error}")
    folder = tmp_path_factory.mktemp("images")
    steps.prepare(folder)
    steps.load_images(node_cluster, folder)
    return node_cluster


@pytest.fixture(scope="module")
def served_cluster(cluster_with_images: Cluster) -> Iterator[Cluster]:
    """The same with the chart installed, for engines that are real vLLM; the chart goes after the file's tests."""
    steps.install(cluster_with_images, steps.FIRST)
    yield cluster_with_images
    cluster_with_images.helm("uninstall", steps.RELEASE, "--namespace", steps.SYSTEM, "--wait")


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, in the cluster that the test uses; deleted after it, not waited for."""
    sizes = [name for name in ("node_cluster", "simulated_cluster") if name in request.fixturenames]
    chosen = sizes[0] if sizes else "control_plane"
    with new_namespace(request.getfixturevalue(chosen), request.node.name) as name:
        yield name


@contextlib.contextmanager
def new_namespace(used: Cluster, purpose: str) -> Iterator[str]:
    """A namespace whose name begins with its purpose."""
    prefix = re.sub("[^a-z0-9]+", "-", purpose.lower()).strip("-")[:40].strip("-")
    name = f"{prefix}-{secrets.token_hex(3)}"
    used.kubectl("create", "namespace", name)
    # Pods are refused until a controller has made the account that they run under.
    used.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={name}", "--timeout=60s")
    yield name
    used.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def helm_program() -> Path:
    """Helm alone, for tests that render."""
    try:
        return kubernetes.cluster_programs([kubernetes.HELM])["helm"]
    except MissingError as error:
        pytest.skip(f"no helm: {error}")
