"""P and D run different versions of vLLM while the image is upgraded: the operator, an API server, a gateway, engines.

Simulated engines take the place of the pods' containers, each with the version of its pod's image. As over real NIXL,
an engine refuses a handshake with another version, and the simulator counts it.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pdx_api.kube.kinds import POD
from pdx_api.names import ADMIN_PORT, ENGINE_CONTAINER, LABEL_ROLE, Order, Role
from pdx_api.settings.gateway import Verification
from pdx_cluster.app.cluster import Cluster
from pdx_proxy.config.settings import Address
from pdx_proxy.discovery.pod_watcher import PodDiscovery
from pdx_sim import SimEngine
from tests.cluster.runtime.harness import Api, Body, Operator
from tests.cluster.simulated_vllm import settings
from tests.cluster.test_discovery import RULES, PodWorld
from tests.component.harness import Reply, Shape, eventually

pytestmark = pytest.mark.timeout(300)

IMAGE = "example.com/vllm:v{}"
OLD, NEW = "0.32.0", "0.33.0"
FINALIZER = "pdx.dev/test"
"""Keeps a deleted pod until its engine has ended, as a kubelet does."""


SPEC: Body = {
    "model": {"name": "sim"},
    "engine": {"image": IMAGE.format(OLD)},
    "prefill": {"replicas": 2},
    "decode": {"replicas": 2},
}


@dataclass
class Node:
    """Starts and ends engines as a kubelet does containers, each on a loopback address of its own."""

    api: Api
    world: PodWorld
    address: str = field(default_factory=lambda: f"127.{random.randint(1, 250)}.{random.randint(1, 250)}")
    versions: dict[str, str] = field(default_factory=dict)
    """By pod, also of pods that are gone."""
    ended: list[SimEngine] = field(default_factory=list)

    @property
    def gateway(self) -> str:
        return f"{self.address}.1"

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        while True:
            for pod in await asyncio.to_thread(self.api.items, POD, self.world.namespace):
                name, leaves = pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]
                if name not in tasks and not leaves:
                    tasks[name] = asyncio.create_task(self._begin(pod, f"{self.address}.{len(tasks) + 2}"))
                elif leaves and name in self.world.engine and tasks[name].done():
                    tasks[name] = asyncio.create_task(self._end(name, self.world.engine.pop(name)))
            for task in tasks.values():
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)

    async def _begin(self, pod: Body, address: str) -> None:
        name, role = pod["metadata"]["name"], pod["metadata"]["labels"][LABEL_ROLE]
        if role == "gateway":
            await self._patch(name, self._status(self.gateway), "status")
            return
        container = next(each for each in pod["spec"]["containers"] if each["name"] == ENGINE_CONTAINER)
        await self._patch(name, {"metadata": {"finalizers": [FINALIZER]}})
        version = self.versions[name] = container["image"].rpartition(":v")[2]
        found = settings(container["args"], address, 5600)
        fast: dict[str, Any] = {"step_seconds": 0.0, "prefill_token_seconds": 1e-6, "decode_token_seconds": 2e-3}
        engine = SimEngine(replace(found, version=version, shutdown_seconds=10.0, lease_seconds=5.0, **fast))
        await engine.start()
        self.world.engine[name] = engine
        (self.world.prefill if role == Role.PREFILL else self.world.decode).append(engine)
        await self._patch(name, self._status(address), "status")

    async def _end(self, name: str, engine: SimEngine) -> None:
        """The gateway sees the deletion first, because the container's preStop waits."""
        await asyncio.sleep(1.0)
        await engine.stop()
        self.ended.append(engine)
        for pool in (self.world.prefill, self.world.decode):
            if engine in pool:
                pool.remove(engine)
        await self._patch(name, {"metadata": {"finalizers": None}})

    @staticmethod
    def _status(address: str) -> Body:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))  # minReadySeconds are over
        conditions = [{"type": t, "status": "True", "lastTransitionTime": since} for t in ("PodScheduled", "Ready")]
        return {"status": {"phase": "Running", "conditions": conditions, "podIP": address, "podIPs": [{"ip": address}]}}

    async def _patch(self, name: str, body: Body, subresource: str = "") -> None:
        await asyncio.to_thread(self.api.patch, POD, self.world.namespace, name, body, subresource)


@pytest.fixture
async def node(
    api: Api, control_plane: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Node]:
    """A namespace whose pods run simulated engines, and whose gateway is this process."""
    world = PodWorld(Order.PREFILL_FIRST, control_plane, namespace, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(world.kubeconfig))
    await world.start_engines([], [])
    await world.grant(RULES)
    found = Node(api, world)
    await world.start_gateway(
        warm=False,
        discovery=PodDiscovery(namespace, "m", lambda: 0.5),
        endpoints=(),
        admin=Address(found.gateway, ADMIN_PORT),
        verification=Verification(5),
        debug_headers=True,
    )
    task = asyncio.create_task(found.run())
    try:
        yield found
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for engine in found.world.engine.values():
            await engine.stop()
        await world.close()


@dataclass
class Traffic:
    """Requests, one after the other, for the length of a block."""

    node: Node
    failures: list[object] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """The versions of P and D of each request that was split."""
    whole: int = 0
    mixed: bool = False
    """Whether P's and D's of different versions were warm at one time."""
    stopped: bool = False

    @contextlib.asynccontextmanager
    async def flowing(self, clients: int = 3) -> AsyncIterator[None]:
        self.stopped = False
        tasks = [asyncio.create_task(self._client(number)) for number in range(clients)]
        try:
            yield
        finally:
            self.stopped = True
            await asyncio.gather(*tasks)

    async def _client(self, number: int) -> None:
        count = 0
        while not self.stopped:
            count += 1
            shape, prompt = Shape(stream=bool(count % 2)), f"{number} {count} "
            try:
                self._count(shape, prompt, await self.node.world.complete(shape, prompt=prompt))
            except Exception as error:  # a lost request, whatever ended it
                self.failures.append(error)
            await asyncio.sleep(0.01)

    def _count(self, shape: Shape, prompt: str, reply: Reply) -> None:
        is_whole = not reply.cut and (reply.done or not shape.stream)
        if not is_whole or (reply.status, reply.text) != (200, shape.expected(prompt)):
            self.failures.append(reply)
        p, d = (reply.headers.get(f"x-pdx-{role}") for role in ("prefill", "decode"))
        if p and d:
            self.pairs.append((self.node.versions[p], self.node.versions[d]))
        else:
            self.whole += 1
        endpoints = self.node.world.endpoints
        versions = [{e.version for e in endpoints if e.warm and e.role is role} for role in Role]
        self.mixed |= any(p != d for p in versions[0] for d in versions[1])


LOST: dict[str, Reply | Exception] = {
    "time out": TimeoutError(),
    "no JSON": Reply(200, {}, b"<html>"),
    "cut": Reply(200, {"content-type": "text/event-stream"}, b"data: [DONE]\n\n", cut=True),
    "no end": Reply(200, {"content-type": "text/event-stream"}, b""),
}


@pytest.mark.parametrize("lost", LOST)
async def test_the_clients_count_each_lost_request(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def complete(shape: Shape, prompt: str) -> Reply:
        found = LOST[lost]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(Shape, "expected", lambda *_: "")
    traffic = Traffic(cast("Node", SimpleNamespace(world=SimpleNamespace(complete=complete, endpoints=()))))
    async with traffic.flowing(clients=1):
        await eventually(lambda: traffic.failures)


async def condition(node: Node, kind: str, *expected: str) -> Body:
    """The condition once its status, its reason and, if stated, its message are these."""
    found: Body = {}

    def holds() -> bool:
        return (found.get("status"), found.get("reason"), found.get("message"))[: len(expected)] == expected

    end = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < end, (kind, found)
        found = await asyncio.to_thread(node.api.condition, node.world.namespace, kind)
        await asyncio.sleep(0.1)
    return found


def refused(node: Node) -> int:
    """Handshakes that engines have refused."""
    engines = [*node.world.engines, *node.ended]
    return sum(engine.counts.handshakes_refused + engine.counts.load_failures for engine in engines)


async def deploy(node: Node) -> None:
    await asyncio.to_thread(partial(node.api.deploy, node.world.namespace, spec=SPEC))
    await condition(node, "KVTransferVerified", "True", "Verified")
    await condition(node, "Ready", "True", "AsSpecified")


async def change(node: Node, body: Body) -> None:
    await asyncio.to_thread(node.api.change, node.world.namespace, body)


async def test_an_upgrade_of_the_image_pairs_each_version_with_itself(node: Node, operator: Operator) -> None:
    """Each image has a revision of its own, and only that keeps the versions apart here."""
    await deploy(node)
    traffic = Traffic(node)
    async with traffic.flowing():
        await change(node, {"engine": {"image": IMAGE.format(NEW)}})
        rolling = await condition(node, "Progressing", "True", "RollingOut")
        await condition(node, "Progressing", "False", "Complete")
        # The gateways report the versions: the operator reads the last report some time after the old pods have ended.
        await condition(node, "Ready", "True", "AsSpecified", "all engines and gateway pods are ready")
        await eventually(lambda: {e.version for e in node.world.endpoints} == {NEW}, 30.0)
        done = len(traffic.pairs)
        await eventually(lambda: len(traffic.pairs) > done + 10, 30.0)
    assert traffic.failures == []
    assert traffic.mixed, "P's and D's of both versions served at one time"
    assert set(traffic.pairs) == {(OLD, OLD), (NEW, NEW)}
    assert traffic.pairs[-1] == (NEW, NEW)
    assert refused(node) == 0
    assert "prefill and" in rolling["message"]
    assert rolling["message"].endswith("engines of the new revision are ready")


async def test_an_upgrade_of_prefill_engines_alone_stops(node: Node, operator: Operator) -> None:
    """The new P's find no D of their version. The old engines serve until the D's get the image, too."""
    await deploy(node)
    traffic = Traffic(node)
    newer = {"podTemplate": {"spec": {"containers": [{"name": ENGINE_CONTAINER, "image": IMAGE.format(NEW)}]}}}
    async with traffic.flowing():
        await change(node, {"prefill": newer})
        verified = await condition(node, "KVTransferVerified", "False", "VersionsDiffer")
        stopped = await condition(node, "Degraded", "True", "RolloutStopped")
        await condition(node, "Available", "True", "Serving")
        assert {each.version for each in node.world.endpoints} == {OLD, NEW}
        assert set(traffic.pairs) == {(OLD, OLD)}
        await change(node, {"decode": newer})
        await condition(node, "KVTransferVerified", "True", "Verified")
        await eventually(lambda: traffic.pairs[-1] == (NEW, NEW), 60.0)
        await condition(node, "Progressing", "False", "Complete")
    assert f"the prefill engine runs vLLM {NEW}, the decode engine {OLD}; vLLM rejects KV from" in verified["message"]
    assert "has stopped, and the old engines serve: KV does not move between the new ones" in stopped["message"]
    assert traffic.failures == []
    assert set(traffic.pairs) == {(OLD, OLD), (NEW, NEW)}
    assert refused(node) == 0
