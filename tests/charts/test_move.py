"""A release is uninstalled, moved or given other namespaces: gateways keep their rights, the next one takes over."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak.results import print_line
from pdx_api.kube.kinds import POD
from pdx_api.names import gateway_name
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from tests.charts.chart import CHART, NAMESPACE
from tests.charts.clients import Clients
from tests.charts.node import Node
from tests.charts.test_rights import kubeconfig
from tests.cluster.runtime.harness import SPEC, Api, Operator, eventually, kubelets

TAKEOVER_SECONDS = 120.0
GATEWAYS = "pdx.dev/role=gateway"


@dataclass(frozen=True)
class Release:
    """A release of the chart, and the namespaces that it watches: none for all."""

    name: str
    namespace: str
    watched: tuple[str, ...] = ()

    @property
    def operator(self) -> str:
        """Name of its Deployment, ServiceAccount and Lease."""
        return f"{self.name}-operator" if "pdx" in self.name else f"{self.name}-pdx-operator"

    def watching(self, *namespaces: str) -> "Release":
        """The same release with other namespaces."""
        return Release(self.name, self.namespace, namespaces)

    def helm(self, cluster: Cluster, verb: str, *flags: str) -> str:
        """Install or upgrade it."""
        value = f"watchNamespaces={json.dumps(list(self.watched))}"
        return cluster.helm(verb, self.name, str(CHART), "--namespace", self.namespace, "--set-json", value, *flags)

    def install_elsewhere(self, cluster: Cluster) -> None:
        """What docs/how-to/move-release.md says."""
        self.helm(cluster, "install", "--create-namespace", "--take-ownership", "--force-conflicts")

    def uninstall(self, cluster: Cluster) -> None:
        """Remove it."""
        cluster.helm("uninstall", self.name, "--namespace", self.namespace)


PDX = Release("pdx", NAMESPACE)
BLUE = Release("blue", "platform")


@pytest.fixture
def releases(cluster: Cluster) -> Iterator[None]:
    """Without the second release afterwards."""
    yield
    with contextlib.suppress(ClusterError):
        BLUE.uninstall(cluster)
    cluster.kubectl("delete", "namespace", BLUE.namespace, "--ignore-not-found", "--wait=false")


class Move:
    """One object, the operator of the present release, and how it moves."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, *, hasty: bool) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.api = Api(cluster)
        self._folder = folder
        self._program = ("-m", "tests.charts.hasty_operator") if hasty else ("-m", "pdx_operator")
        self._operator: Operator | None = None
        self._changes = 0
        self.slowest = 0.0
        """Seconds until a release managed the object."""

    def end_operator(self) -> None:
        """The operator's pod is gone with its release."""
        if self._operator is not None:
            self._operator.end()
            assert "Traceback" not in self._operator.text()
            self._operator = None

    def start_operator(self, release: Release) -> None:
        """The operator of a release, with the flags and the rights that the chart gives it."""
        self.end_operator()
        selector = ("deployment", release.operator, f"-n={release.namespace}", "--output=json")
        deployment = json.loads(self.cluster.kubectl("get", *selector))
        flags = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        own = [flag for flag in flags if not flag.startswith("--health-port")]
        config = kubeconfig(self.cluster, self._folder, release.operator, release.namespace)
        more = (*own, f"--own-namespace={release.namespace}")
        self._operator = Operator.start(config, self._folder, *more, program=self._program).wait_until_working()

    def assert_managed(self, release: Release) -> None:
        """It acts on a change of the spec, within the time that is promised."""
        self._changes += 1
        # Engines keep their pods, so that they serve all the time.
        body = self.api.change(self.namespace, {"rollout": {"maxSurge": self._changes}})
        generation, began = body["metadata"]["generation"], time.monotonic()

        def managed() -> bool:
            status = self.api.status(self.namespace)
            owner = f"{release.namespace}/{release.operator}"
            return (status.get("operator"), status.get("observedGeneration")) == (owner, generation)

        eventually(managed, TAKEOVER_SECONDS, what=f"managed by {release}: {self.api.status(self.namespace)}")
        self.slowest = max(self.slowest, time.monotonic() - began)
        assert self.api.condition(self.namespace, "Managed") == {}, "the notice is gone"

    def assert_gateway_has_rights(self) -> None:
        """Its ServiceAccount may still read what it routes to."""
        account = f"system:serviceaccount:{self.namespace}:{gateway_name('m')}"
        for verb in ("list", "watch"):
            can = ("auth", "can-i", verb, "pods", f"--as={account}", "--namespace", self.namespace)
            assert self.cluster.kubectl(*can) == "yes\n"

    def replace_pods(self) -> None:
        """Delete an engine of each role and a gateway, of which there are two; the new ones work."""
        for role in ("gateway", "prefill", "decode"):
            pods = self.api.items(POD, self.namespace, labelSelector=f"pdx.dev/role={role}")
            self.api.delete(POD, self.namespace, pods[0]["metadata"]["name"])
            gone, count = pods[0]["metadata"]["uid"], len(pods)
            eventually(lambda: self._are_ready(role, count, gone), what=f"a new {role}")  # noqa: B023

    def _are_ready(self, role: str, count: int, gone: str) -> bool:
        pods = self.api.items(POD, self.namespace, labelSelector=f"pdx.dev/role={role}")
        ready = [pod for pod in pods if _is_ready(pod) and pod["metadata"]["uid"] != gone]
        return len(ready) == len(pods) == count


def _is_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())


@pytest.mark.timeout(300)
def test_a_release_is_moved_and_the_next_one_manages_its_objects(
    cluster: Cluster, namespace: str, tmp_path: Path, releases: None
) -> None:
    move = Move(cluster, namespace, tmp_path, hasty=True)
    with kubelets(move.api, namespace):
        try:
            _moved(move, SPEC, move.assert_gateway_has_rights)
        finally:
            move.end_operator()
    events = {event["reason"] for event in move.api.events(namespace)}
    assert "TakenOver" in events


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_no_request_is_lost_while_a_release_moves(
    cluster: Cluster, namespace: str, tmp_path: Path, releases: None
) -> None:
    spec = {**SPEC, "prefill": {"replicas": 2}, "decode": {"replicas": 2}, "gateway": {"replicas": 2}}
    move = Move(cluster, namespace, tmp_path, hasty=False)
    clients = Clients(cluster, namespace, GATEWAYS)
    with Node(cluster, namespace, tmp_path, None), contextlib.ExitStack() as load:

        def work() -> None:
            if not clients.served:
                eventually(lambda: len(clients.read_endpoints()) == 2, what="endpoints")
                load.enter_context(clients)
            time.sleep(130.0)  # longer than a watch of pods lasts
            move.replace_pods()

        try:
            _moved(move, spec, work)
        finally:
            move.end_operator()
    assert not clients.lost, (len(clients.lost), clients.lost[:5])
    figures = {"served": clients.served, "lost": 0, "slowest_takeover_seconds": round(move.slowest, 1)}
    print_line("move", figures)


def _moved(move: Move, spec: dict[str, Any], check: Any) -> None:
    cluster, namespace, api = move.cluster, move.namespace, move.api
    PDX.helm(cluster, "install")
    move.start_operator(PDX)
    api.deploy(namespace, spec=spec)
    eventually(lambda: api.is_ready(namespace), within=100, what="ready")
    for watched in ((namespace,), ()):  # cluster-wide to namespaced, and back
        release = PDX.watching(*watched)
        release.helm(cluster, "upgrade")
        move.start_operator(release)
        move.assert_managed(release)
        move.assert_gateway_has_rights()
    for watched in ((namespace,), ("team-a",)):  # taken out of its namespaces
        PDX.watching(*watched).helm(cluster, "upgrade")
    move.end_operator()
    check()
    BLUE.watching(namespace).install_elsewhere(cluster)
    move.start_operator(BLUE.watching(namespace))
    move.assert_managed(BLUE)
    BLUE.uninstall(cluster)
    move.end_operator()
    check()
    PDX.watching().helm(cluster, "upgrade", "--take-ownership", "--force-conflicts")
    move.start_operator(PDX)
    move.assert_managed(PDX)
    move.assert_gateway_has_rights()
    PDX.uninstall(cluster)
    move.assert_gateway_has_rights()
