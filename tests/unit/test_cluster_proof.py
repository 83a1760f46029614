"""`make cluster-e2e` ends soon where it can go no further, and its last line says which step failed and why."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from benchmarks import campaigns
from benchmarks.campaigns import Run
from pdx_api.spec.parse import parse
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from tests.cluster import connectors
from tests.cluster.tiny import __main__ as proof
from tests.cluster.tiny import objects, scene, steps

NO_ROOM = "1 decode engine of revision b cannot start: no node has a free cpu (0/1 nodes); free one or add a node"


@pytest.fixture
def run_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose list of campaigns gets the entry."""
    (tmp_path / "benchmarks").mkdir()
    listed = tmp_path / "benchmarks" / "campaigns.json"
    listed.write_text(json.dumps([{"command": proof.CAMPAIGN, "paths": []}]))
    monkeypatch.setattr(campaigns, "begin", lambda command: Run(command, tmp_path, "0123456789ab", 0.0))
    monkeypatch.setattr(sys, "argv", ["tiny"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("error", [ClusterError(f"{NO_ROOM}\npods"), ZeroDivisionError(NO_ROOM)])
def test_the_last_line_names_the_step_and_the_reason(
    run_of: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fails(folder: Path) -> None:
        raise error

    monkeypatch.setattr(steps, "prepare", fails)
    assert proof.main() == 1
    printed, last = capsys.readouterr()
    step = "images of operator and gateway, from their Dockerfiles"
    assert last == f"Not proved: {step}: {NO_ROOM}\n"
    logs = Path(printed.splitlines()[-1].partition("the logs are in ")[2])
    assert type(error).__name__ in (logs / "error.txt").read_text()
    (entry,) = campaigns.read(run_of)
    assert entry.outcome == f"failed: {step}: {NO_ROOM}"


class Reports:
    """A cluster whose only object has these conditions."""

    def __init__(self, *conditions: dict[str, str]) -> None:
        self._body = {"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "conditions": conditions}}

    def kubectl(self, *_: Any, **__: Any) -> str:
        return json.dumps(self._body)


def _wait(monkeypatch: pytest.MonkeyPatch, *conditions: dict[str, str]) -> None:
    monkeypatch.setattr(scene, "UNSCHEDULABLE_SECONDS", 0.0)
    reported = cast("Cluster", Reports(*conditions))
    scene.Scene(reported, "tiny", lambda line: None).wait_until_settled(0.7)


def test_a_wait_ends_where_an_engine_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    degraded = {"type": "Degraded", "status": "True", "reason": "Unschedulable", "message": NO_ROOM}
    with pytest.raises(ClusterError) as caught:
        _wait(monkeypatch, degraded)
    assert str(caught.value) == NO_ROOM


def test_a_wait_that_is_too_long_names_the_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="not settled after 1 s: Degraded=True it crashes"):
        _wait(monkeypatch, {"type": "Degraded", "status": "True", "reason": "Crashed", "message": "it crashes"})


def test_a_wait_ends_once_the_object_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    _wait(monkeypatch, {"type": "Ready", "status": "True"}, {"type": "Progressing", "status": "False"})


@pytest.mark.parametrize(
    "name", ["tiny-cpu", *(f"connectors/{name}" for name in (*connectors.EXAMPLES, "lmcache-p2p"))]
)
def test_an_example_keeps_its_environment_in_pods(name: str) -> None:
    own = yaml.safe_load((objects.CHECKOUT / "examples" / f"{name}.yaml").read_text())["spec"]["engine"]["env"]
    made = parse(objects.example(name, env={"LD_LIBRARY_PATH": "/lib"})).spec.engine.env
    found = {each.name: each.value or "" for each in made}
    assert found["LD_LIBRARY_PATH"] == "/lib"
    assert str(objects.SLEEPING_NIXL) in found["PYTHONPATH"].split(":")
    assert all(each["value"] in found[each["name"]].split(":") for each in own)
