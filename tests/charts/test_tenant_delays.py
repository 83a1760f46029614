"""A tenant with `edit` makes the worst objects that it can: another tenant's object becomes Ready as fast as usual."""

import os
import statistics
import time
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.operator import FOLDER
from benchmarks.soak.results import print_line, record
from pdx_api.kube.kinds import Kind
from pdx_cluster.app.cluster import Cluster
from tests.charts.chart import NAMESPACE, install
from tests.charts.test_rights import kubeconfig
from tests.charts.test_tenant import tenant_of
from tests.charts.worst_objects import WORST, clear, deepest, disturbed, text_of
from tests.cluster.runtime.harness import Api, Operator, eventually, kubelets
from tests.soak_entries import SHORTENS

IS_WHOLE = SHORTENS not in os.environ
ROUNDS, OBJECTS, VICTIMS = (3, 300, 10) if IS_WHOLE else (2, 22, 1)
MOST_CREATED, MOST_CHANGING = 1.2, 2.0
"""Times the usual: the changes also take the API server and the controllers of Kubernetes, which all tenants share."""
AT_ONCE = 4


@pytest.mark.timeout(300)
def test_the_worst_objects_leave_another_tenant_ready(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    scene = Scene(cluster, namespace, tmp_path)
    try:
        answers = scene.make(2 * len(WORST))
        print_line("answers", answers)
        assert answers["taken"] > len(WORST)
        with disturbed(scene.tenant, namespace, 0.1):
            print_line("victim", {"seconds": scene.ready_seconds("victim", within=120)})
    finally:
        scene.end()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_tenant_delays_no_object_of_another(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    scene = Scene(cluster, namespace, tmp_path)
    found: dict[str, list[float]] = {"usual": [], "created": [], "changing": []}
    first: list[float] = []
    answers: Counter[str] = Counter()
    try:
        scene.ready_seconds("first")
        for number in range(ROUNDS):
            found["usual"] += scene.several_seconds(f"usual-{number}")
            answers += scene.make(OBJECTS)
            created = scene.several_seconds(f"created-{number}")
            first.append(created[0])
            found["created"] += created
            with disturbed(scene.tenant, namespace, 0.2):
                time.sleep(2)
                found["changing"] += scene.several_seconds(f"changing-{number}")
            scene.clear()
            latest = {name: statistics.median(seconds[-VICTIMS:]) for name, seconds in found.items()}
            print_line("round", {**latest, "first": created[0]})
    finally:
        scene.end()
    line = {"rounds": ROUNDS, "objects": OBJECTS, "answers": answers, **found, "first": first}
    print_line("delays", line)
    if IS_WHOLE:
        record("delays", line, FOLDER)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    assert medians["created"] <= MOST_CREATED * medians["usual"], line
    assert medians["changing"] <= MOST_CHANGING * medians["usual"], line


class Scene:
    """An operator for all namespaces, and two of them: the tenant's, and that of another one, with kubelets."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        install(cluster)
        self.admin = Api(cluster)
        self.tenant = tenant_of(cluster, self.admin, namespace)
        self._cluster, self._namespace = cluster, namespace
        self.victim = f"{namespace}-v"[-60:].strip("-")
        cluster.kubectl("create", "namespace", self.victim)
        config = kubeconfig(cluster, folder)
        self.operator = Operator.start(config, folder, f"--own-namespace={NAMESPACE}").wait_until_working()

    def make(self, count: int) -> Counter[str]:
        """Create so many of the worst objects. Returns what the API server answered."""
        answers: Counter[str] = Counter()

        def create(made: tuple[Kind, dict[str, Any]]) -> None:
            try:
                self.tenant.create(made[0], self._namespace, text_of(made[1]))
            except urllib.error.HTTPError as error:
                answers[f"refused {error.code}"] += 1
            else:
                answers["taken"] += 1

        bodies = [WORST[number % len(WORST)](number // len(WORST)) for number in range(count)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(create, [deepest(), *bodies]))
        return answers

    def ready_seconds(self, name: str, within: float = 300.0) -> float:
        """The seconds until a new object of the other tenant is Ready; it is deleted afterwards."""
        with kubelets(self.admin, self.victim):
            began = time.monotonic()
            self.admin.deploy(self.victim, name)
            eventually(lambda: self.admin.is_ready(self.victim, name), within, f"{name} ready", every=0.02)
            seconds = time.monotonic() - began
        clear(self.admin, self.victim, within)
        return seconds

    def several_seconds(self, name: str) -> list[float]:
        """`ready_seconds` of `VICTIMS` objects, one after another. The API server delays the first ones.

        They vary: whether an object needs one reconcile more, which takes 0.3 s, depends on the order of a few events.
        """
        return [self.ready_seconds(f"{name}-{number}") for number in range(VICTIMS)]

    def clear(self) -> None:
        """Delete what the tenant has made, and wait until the operator has nothing to do."""
        clear(self.admin, self._namespace, 300)
        eventually(self._is_idle, 120, "an idle operator", every=0.1)

    def _is_idle(self) -> bool:
        before = self.operator.cpu_seconds()
        time.sleep(2)
        return self.operator.cpu_seconds() - before < 0.2

    def end(self) -> None:
        """End the operator, which has neither ended nor failed, and delete everything."""
        alive = self.operator.process.poll() is None
        try:
            state = self.operator.get("/healthz")[0] if alive else 0
            seconds = self.operator.end()
        finally:
            clear(self.admin, self._namespace, 300)
            self._cluster.kubectl("delete", "namespace", self.victim, "--wait=false")
        assert alive
        assert (state, seconds < 20) == (200, True)
        assert "Traceback" not in self.operator.text(), self.operator.text()
        assert "is started again" not in self.operator.text(), self.operator.text()
