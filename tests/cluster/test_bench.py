"""`pdx bench --compare` on a node with containers: both arms run, a killed one is removed, the object stays."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdx_api.kube.kinds import PDDEPLOYMENT, POD
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.node import pods
from pdx_cluster.node.images import Image
from tests.cluster.runtime.harness import Api, Body, Operator, eventually, grant, install, revoke, uninstall

SECONDS = 240.0
"""Limit for a run on a busy machine."""
pytestmark = pytest.mark.timeout(3 * SECONDS)
CHECKOUT = Path(__file__).parents[2]
PYTHON = str(Path(sys.prefix) / "bin" / "python")
GATEWAY = Image("pdx.local/gateway-of-machine:1", {}, {"tmp": 0o1777}, (PYTHON, "-m", "pdx_proxy"))
ENGINE = Image(
    "pdx.local/simulated-vllm:1",
    {"opt/bin/vllm": f'#!/bin/sh\nexec {PYTHON} {Path(__file__).with_name("simulated_vllm.py")} "$@"\n'.encode()},
    {"tmp": 0o1777},
)
GRACE = 7
"""Seconds; more than a pod sleeps before it stops, and less than a test waits."""
DEVICE = "example.com/device"
DEVICES = 4
QUICK = [
    *("--isl", "100", "--osl", "8", "--ttft", "20s", "--tpot", "5s", "--rate", "4", "--repeats", "1"),
    *("--warm-up", "200ms", "--duration", "2s", "--chunks", "512", "--ratios", "1:1"),
]
NAME = "mine"


@pytest.fixture(scope="module")
def prepared(node_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster with CRD, operator, images, and a node with devices; as it was, afterwards."""
    assert node_cluster.node is not None
    for image in (GATEWAY, ENGINE):
        node_cluster.node.import_image(image)
    node = node_cluster.kubectl("get", "nodes", "-o", "name").strip()
    set_devices(node_cluster, node, str(DEVICES))
    folder = tmp_path_factory.mktemp("operator")
    with contextlib.ExitStack() as stack:
        stack.callback(set_devices, node_cluster, node, "0")
        stack.callback(uninstall, node_cluster)
        install(node_cluster)
        stack.callback(revoke, node_cluster)
        operator = Operator.start(
            grant(node_cluster, folder), folder, "--gateway-image", GATEWAY.reference, "--gateway-pull-policy", "Never"
        )
        stack.callback(operator.end)
        operator.wait_until_working()
        yield node_cluster


def set_devices(cluster: Cluster, node: str, count: str) -> None:
    """Let the node have so many devices that nothing uses."""
    patch = {"status": {"capacity": {DEVICE: count}, "allocatable": {DEVICE: count}}}
    cluster.kubectl("patch", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch))


def spec() -> Body:
    """A pair of simulated engines with one device each, and a gateway, all with the machine's Python."""
    folders = [*pods.SYSTEM, Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parent]
    folders += [CHECKOUT / name for name in ("api", "sim", "proxy")]
    mounted = pods.host_folders(dict.fromkeys(folders))

    def template(container: str) -> Body:
        return {
            "spec": {
                "containers": [{"name": container, "volumeMounts": mounted.mounts}],
                "volumes": mounted.volumes,
                "terminationGracePeriodSeconds": GRACE,
            }
        }

    path = [{"name": "PATH", "value": "/opt/bin:/usr/bin:/bin"}]
    little = {"cpu": "10m", "memory": "64Mi"}  # more pods than the machine has cores
    one = {"replicas": 1, "resources": {"limits": {DEVICE: 1}, "requests": little}}
    return {
        "model": {"name": "m"},
        "engine": {
            "image": ENGINE.reference,
            "imagePullPolicy": "Never",
            "drainSeconds": 1,
            "env": path,
            "podTemplate": template("engine"),
        },
        "prefill": one,
        "decode": one,
        "gateway": {"podTemplate": template("gateway"), "resources": {"requests": little}},
    }


@pytest.fixture
def mine(prepared: Cluster, namespace: str) -> Iterator[Body]:
    """The user's object, whose engines have two of the devices until the test ends."""
    api = Api(prepared)
    created = api.deploy(namespace, NAME, spec())
    scheduled = lambda: sum("nodeName" in pod["spec"] for pod in api.items(POD, namespace)) == 3  # noqa: E731
    eventually(scheduled, SECONDS, "scheduled")
    yield created
    prepared.kubectl("delete", "pdd", "--all", "-n", namespace)
    eventually(lambda: not api.items(POD, namespace), SECONDS, "devices free")


class Bench:
    """`pdx bench` as a process; its messages are read as they come."""

    def __init__(self, cluster: Cluster, namespace: str, *flags: str) -> None:
        command = [sys.executable, "-m", "pdx_cli", "bench", NAME, "-n", namespace]
        self.process = subprocess.Popen(
            [*command, "--kubeconfig", str(cluster.kubeconfig), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OPENAI_API_KEY": ""},
        )
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    def end(self) -> int:
        """Wait for its end."""
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it has not ended:\n{self.text}") from error
        finally:
            if self.process.returncode is not None:
                self._reader.join()
                assert self.process.stdout is not None
                self.process.stdout.close()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.end()


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    """Those that a test starts end with it."""
    started: list[Bench] = []
    yield started
    for each in started:
        each.process.kill()
        each.end()


def arms(api: Api, namespace: str) -> set[str]:
    """Names of the objects of arms."""
    return {each["metadata"]["name"] for each in api.items(PDDEPLOYMENT, namespace)} - {NAME}


def untouched(api: Api, namespace: str, before: Body) -> None:
    """Nobody but its creator has written the object; the operator writes its status."""
    after: Any = api.get(PDDEPLOYMENT, namespace, NAME)
    assert after["spec"] == before["spec"]
    for field in ("uid", "generation", "labels", "annotations"):
        assert after["metadata"].get(field) == before["metadata"].get(field)
    writers = {each["manager"] for each in after["metadata"]["managedFields"] if each.get("subresource") != "status"}
    assert writers == {each["manager"] for each in before["metadata"]["managedFields"]}


def test_both_arms_run_on_free_devices(
    prepared: Cluster, namespace: str, mine: Body, benches: list[Bench], tmp_path: Path
) -> None:
    api = Api(prepared)
    benches.append(Bench(prepared, namespace, "--compare", "--devices", "3", "--output", str(tmp_path / "no")))
    assert benches[0].end() == 2
    assert f"Each arm needs 3 devices and {DEVICES - 2} devices are free" in benches[0].text
    benches.append(Bench(prepared, namespace, "--compare", *QUICK, "--output", str(tmp_path / "out")))
    code = benches[1].end()
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    # On a busy machine the generator is late, and marks what it has measured.
    assert code == (0 if all(arm["valid"] for arm in found["arms"]) else 1), benches[1].text
    assert [arm["name"] for arm in found["arms"]] == ["aggregated 2, chunks of 512", "P:D 1:1"], benches[1].text
    assert found["devices"] == 2
    for arm in found["arms"]:
        [step] = arm["steps"]
        assert (step["failures"], step["good"]) == ({}, step["count"])
        assert step["phases"]["prefill"] > 0.009
    assert found["arms"][1]["counters"]["decode"]["external_tokens"] >= 100 * found["arms"][1]["steps"][0]["count"]
    assert not arms(api, namespace)
    untouched(api, namespace, mine)


def test_a_killed_run_is_removed(
    prepared: Cluster, namespace: str, mine: Body, benches: list[Bench], tmp_path: Path
) -> None:
    api = Api(prepared)
    killed = Bench(prepared, namespace, "--compare", *QUICK, "--output", str(tmp_path / "out"))
    benches.append(killed)
    others = f"pdx.dev/deployment!={NAME}"
    eventually(lambda: len(api.items(POD, namespace, labelSelector=others)) >= 3, SECONDS, "an arm")
    killed.kill()
    [left] = arms(api, namespace)
    assert left.startswith(f"{NAME}-bench-")
    again = Bench(prepared, namespace, "--compare", *QUICK, "--output", str(tmp_path / "again"))
    benches.append(again)
    assert again.end() == 1
    assert f"({left})" in again.text
    assert "remove its arms with --clean" in again.text
    renewed = {"metadata": {"annotations": {"pdx.dev/bench-renewed": "0"}}}
    api.patch(PDDEPLOYMENT, namespace, left, renewed)  # as it is a minute later
    cleaned = Bench(prepared, namespace, "--clean")
    benches.append(cleaned)
    assert cleaned.end() == 0, cleaned.text
    assert f"Removing what an earlier run left: {left}" in cleaned.text
    assert not arms(api, namespace)
    untouched(api, namespace, mine)
