"""Two installations with overlapping scopes: each object has one writer, whatever happens."""

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.operator import FOLDER
from benchmarks.soak.results import print_line, record
from pdx_api.kube.kinds import KIND_OF, PDDEPLOYMENT
from pdx_api.names import API_VERSION, KIND
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.audit import Audit
from tests.cluster.runtime.conftest import StartOperator
from tests.cluster.runtime.harness import SPEC, SYSTEM, Api, Operator, eventually, kubelets

INSTALLATIONS = ("one", "two")
OBJECTS = 5
"""That exist at the same time."""
PAUSE = 0.4
"""Seconds between two changes."""
RESTART = 40.0
"""Seconds between two ends of an operator."""

SHORT_SEED = 200
"""Some objects name each of the installations, and an object exists for at least six seconds before it is deleted."""

pytestmark = pytest.mark.timeout(300)


def test_each_object_has_one_writer(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster
) -> None:
    print_line("scopes", _campaign(api, start_operator, namespace, control_plane, seconds=10, seed=SHORT_SEED))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_object_has_one_writer_for_long(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster
) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    seconds = float(os.environ.get("SECONDS_EACH", "600"))
    record("scopes", _campaign(api, start_operator, namespace, control_plane, seconds=seconds, seed=seed), FOLDER)


@dataclass
class _Scopes:
    """The operators, and the objects that exist."""

    api: Api
    start: StartOperator
    shared: str
    """The namespace that both installations watch."""
    second: str
    """A namespace that only the first one watches."""
    chance: random.Random
    operators: dict[str, Operator] = field(default_factory=dict)
    installations: dict[str, str] = field(default_factory=dict)
    """End of the User-Agent -> installation."""
    live: dict[str, str] = field(default_factory=dict)
    """Name -> namespace."""
    done: Counter[str] = field(default_factory=Counter)

    def lease(self, installation: str) -> str:
        return f"{installation}-{self.shared}"[:63].strip("-")

    def start_one(self, installation: str) -> None:
        namespaces = [self.shared, self.second] if installation == "one" else [self.shared]
        watched = [flag for each in namespaces for flag in ("--namespace", each)]
        own = ("--own-namespace", SYSTEM, "--lease-name", self.lease(installation), "--lease-seconds", "6")
        operator = self.operators[installation] = self.start(*watched, *own)
        self.installations[f"-{operator.process.pid})"] = installation

    def restart(self) -> None:
        """End one operator, or kill it, and start it again: its objects stay its own."""
        installation = self.chance.choice(INSTALLATIONS)
        if self.chance.random() < 0.5:
            self.operators[installation].kill()
        else:
            self.operators[installation].end()
        self.start_one(installation)
        self.done["restart"] += 1

    def act(self) -> None:
        """Do something that a user does."""
        if len(self.live) < OBJECTS:
            self.create()
            return
        name = self.chance.choice(sorted(self.live))
        match self.chance.choice(("scale", "roll out", "divert", "delete child", "delete")):
            case "scale":
                self.api.change(self.live[name], {"decode": {"replicas": self.chance.randrange(3)}}, name)
            case "roll out":
                self.api.change(self.live[name], {"engine": {"maxModelLen": self.chance.randrange(512, 4096)}}, name)
            case "divert":
                self._divert(name)
            case "delete child":
                self.api.delete(KIND_OF["ServiceAccount"], self.live[name], f"{name}-gateway")
            case "delete":
                self.api.delete(PDDEPLOYMENT, self.live.pop(name), name)
        self.done["change"] += 1

    def create(self) -> None:
        """A new object; some name their operator."""
        name = f"m{self.done['create']:03}"
        named = self.chance.choice((None, None, *INSTALLATIONS))
        namespace = self.second if named != "two" and self.chance.random() < 0.2 else self.shared
        annotations = {"pdx.dev/operator": f"{SYSTEM}/{self.lease(named)}"} if named else {}
        metadata = {"name": name, "annotations": annotations}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": SPEC}
        self.api.create(PDDEPLOYMENT, namespace, body)
        self.live[name] = namespace
        self.done["create"] += 1

    def _divert(self, name: str) -> None:
        service = KIND_OF["Service"]
        if self.api.get(service, self.live[name], f"{name}-gateway"):
            self.api.patch(service, self.live[name], f"{name}-gateway", {"spec": {"selector": {"app": "other"}}})

    def is_settled(self) -> bool:
        """Whether every object that exists is ready."""
        return all(self.api.is_ready(namespace, name) for name, namespace in self.live.items())


def _campaign(
    api: Api, start: StartOperator, namespace: str, cluster: Cluster, *, seconds: float, seed: int
) -> dict[str, Any]:
    second = f"{namespace}-2"[-60:].strip("-")
    cluster.kubectl("create", "namespace", second)
    audit, scopes = Audit(cluster.audit_log), _Scopes(api, start, namespace, second, random.Random(seed))
    try:
        for installation in INSTALLATIONS:
            scopes.start_one(installation)
        with kubelets(api, namespace), kubelets(api, second):
            end = time.monotonic() + seconds
            restart = time.monotonic() + RESTART
            while time.monotonic() < end:
                scopes.act()
                if time.monotonic() > restart:
                    scopes.restart()
                    restart = time.monotonic() + RESTART
                time.sleep(PAUSE)
            for name, where in scopes.live.items():
                api.change(where, {"decode": {"replicas": 1}}, name)
            eventually(scopes.is_settled, within=100, what="settled")
    finally:
        cluster.kubectl("delete", "namespace", second, "--wait=false")
    writers = _writers(audit, scopes)
    # An object that is deleted while its operator starts may have had no writer.
    assert set(scopes.live) <= set(writers)
    assert len(writers) > 0.9 * scopes.done["create"]
    assert not {name: by for name, by in writers.items() if len(by) != 1}
    objects = Counter(next(iter(by)) for by in writers.values())
    assert set(objects) == set(INSTALLATIONS), objects
    writes = sum(sum(by.values()) for by in writers.values())
    return {"seconds": seconds, "seed": seed, "done": scopes.done, "objects": objects, "writes": writes}


def _writers(audit: Audit, scopes: _Scopes) -> dict[str, Counter[str]]:
    """PDDeployment -> the installations that have written it, its children or Events on it, and how often."""
    found: dict[str, Counter[str]] = {}
    for write in (*audit.of_operators(scopes.shared), *audit.of_operators(scopes.second)):
        installation = next(name for end, name in scopes.installations.items() if write.agent.endswith(end))
        found.setdefault(write.name[:4], Counter())[installation] += 1
    return found
