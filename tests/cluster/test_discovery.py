"""The gateway finds engines as pods of a real API server; the pods' status is written by hand, as a kubelet would.

Engines are simulated, each on a loopback address of its own, which is its pod's IP.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio import client, config

from pdx_api.kube.client import Cluster as ApiServer
from pdx_api.kube.client import ExpiredError
from pdx_api.names import Order, Role
from pdx_cluster.app.cluster import Cluster
from pdx_proxy.discovery.pod_watcher import PodDiscovery
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_sim import SimEngine
from tests.component.harness import FAST, Shape, World, eventually, request_of
from tests.ports import free_port

NAME = "tiny"
AT_ONCE_SECONDS = 1.0
CONTROL_PLANE_THREAD = ThreadPoolExecutor(1)
"""Starts the API server, which ends with the thread that started it: this one outlives the tests."""
RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
"""All that the gateway may do."""


def access(name: str, rules: list[dict[str, Any]]) -> str:
    """A service account and what it may do, as manifests."""
    group = "rbac.authorization.k8s.io"
    manifests: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name}],
        },
    ]
    return yaml.safe_dump_all(manifests)


class PodWorld(World):
    """A gateway that finds the pods of one namespace; an engine's pod is named like prefill-a-0."""

    def __init__(self, order: Order, plane: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(order)
        self.plane = plane
        self.namespace = namespace
        self.kubeconfig = folder / "gateway.kubeconfig"
        self.engine: dict[str, SimEngine] = {}
        self._client: client.ApiClient | None = None

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self.plane.kubectl, *arguments, "-n", self.namespace, stdin=stdin)

    async def grant(self, rules: list[dict[str, Any]]) -> None:
        """The gateway's service account, and a kubeconfig with its token."""
        await self.kubectl("apply", "-f", "-", stdin=access("gateway", rules))
        token = (await self.kubectl("create", "token", "gateway")).strip()
        found = yaml.safe_load(self.plane.kubeconfig.read_text())
        found["users"] = [{"name": user["name"], "user": {"token": token}} for user in found["users"]]
        self.kubeconfig.write_text(yaml.safe_dump(found))

    async def pods(self) -> client.CoreV1Api:
        if self._client is None:
            configuration = client.Configuration()
            kubeconfig = str(self.plane.kubeconfig)
            await config.load_kube_config(kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
            self._client = client.ApiClient(configuration)
        return client.CoreV1Api(self._client)

    async def add(self, name: str, order: Order | None = None) -> SimEngine:
        """Start an engine, and make its pod as it is while the engine loads."""
        role, revision, _ = name.split("-")
        chosen_order, host = order or self.order, f"127.0.0.{len(self.engine) + 2}"
        sim: dict[str, Any] = {
            "host": host,
            "side_channel_host": host,
            "shutdown_seconds": 5.0,
            "lease_seconds": 5.0,
            "decode_token_seconds": 1e-3,
        }
        engine = self.engine[name] = SimEngine(replace(FAST, role=Role(role), order=chosen_order, **sim))
        await engine.start()
        (self.prefill if engine.settings.role is Role.PREFILL else self.decode).append(engine)
        labels = {"pdx.dev/deployment": NAME, "pdx.dev/role": role, "pdx.dev/revision": revision}
        annotations = {"pdx.dev/connector": "NIXL", "pdx.dev/order": str(chosen_order)}
        ports = [{"name": "http", "containerPort": engine.port}]
        pod: Any = {
            "apiVersion": "v1",
            "kind": "Pod",
            # A finalizer keeps a deleted pod, as a kubelet does until its containers have ended.
            "metadata": {"name": name, "labels": labels, "annotations": annotations, "finalizers": ["pdx.dev/test"]},
            "spec": {
                "schedulerName": "nobody",
                "containers": [{"name": "engine", "image": "none.invalid/engine", "ports": ports}],
            },
        }
        await (await self.pods()).create_namespaced_pod(self.namespace, pod)
        return engine

    async def show(self, name: str, *, ready: bool = True, restarts: int = 0) -> None:
        """Write a running pod's status."""
        state = {"running": {"startedAt": "2030-01-01T00:00:00Z"}}
        container = {"name": "engine", "image": "", "imageID": "", "ready": ready, "restartCount": restarts}
        host = self.engine[name].settings.host
        status = {
            "phase": "Running",
            "podIP": host,
            "podIPs": [{"ip": host}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{**container, "containerID": f"sim://{name}/{restarts}", "state": state}],
        }
        await (await self.pods()).patch_namespaced_pod_status(name, self.namespace, {"status": status})

    async def start(self, *names: str, **more: Any) -> None:
        for name in names:
            await self.add(name)
            await self.show(name)
        await self.grant(RULES)
        discovery = PodDiscovery(self.namespace, NAME, lambda: 0.5)
        await self.start_gateway(warm=False, discovery=discovery, debug_headers=True, **{"endpoints": (), **more})
        await self.all_warm(*names)

    async def all_warm(self, *names: str) -> None:
        await eventually(lambda: {e.name for e in self.endpoints if e.warm} == set(names), 15.0, f"warm: {names}")

    async def delete(self, name: str) -> None:
        await (await self.pods()).delete_namespaced_pod(name, self.namespace)

    async def end(self, name: str) -> None:
        """The end of a pod that is being deleted."""
        await self.engine[name].stop()
        patch = {"metadata": {"finalizers": None}}
        await (await self.pods()).patch_namespaced_pod(name, self.namespace, patch)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self.gateway.registry.snapshot.everything

    def state_of(self, name: str) -> State | None:
        return next((e.state for e in self.endpoints if e.name == name), None)

    async def sees(self, name: str, state: State | None) -> None:
        await eventually(lambda: self.state_of(name) is state, AT_ONCE_SECONDS, f"{name} is {state}")

    async def close(self) -> None:
        api = await self.pods()
        for name in (await self.kubectl("get", "pods", "-o", "name")).split():
            patch = {"metadata": {"finalizers": None}}
            await api.patch_namespaced_pod(name.removeprefix("pod/"), self.namespace, patch)
        await super().close()
        assert self._client is not None
        await self._client.close()  # type: ignore[no-untyped-call]


@pytest.fixture
async def world(
    control_plane: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PodWorld]:
    """A world whose gateway reaches the API server as its service account."""
    found = PodWorld(Order.PREFILL_FIRST, control_plane, namespace, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig))
    await found.start_engines([], [])
    try:
        yield found
        if found.control is not None:
            await found.check()
    finally:
        await found.close()


async def steady(world: PodWorld, stop: asyncio.Event, failures: list[object]) -> None:
    """A request every 20 ms until `stop` is set."""
    count = 0
    while not stop.is_set():
        count += 1
        shape = Shape(stream=bool(count % 2))
        reply = await world.complete(shape, prompt=str(count))
        if (reply.status, reply.text) != (200, shape.expected(str(count))):
            failures.append(reply)
        await asyncio.sleep(0.02)


async def test_pods_are_found_followed_and_left(world: PodWorld) -> None:
    """With pods list and watch alone."""
    await world.start("prefill-a-0", "decode-a-0")
    reply = await world.complete()
    assert (reply.headers["x-pdx-prefill"], reply.headers["x-pdx-decode"]) == ("prefill-a-0", "decode-a-0")
    stop, failures = asyncio.Event(), list[object]()
    requests = asyncio.create_task(steady(world, stop, failures))

    await world.add("decode-a-1")
    await asyncio.sleep(0.1)
    assert world.state_of("decode-a-1") is None, "it has no IP yet"
    await world.show("decode-a-1", ready=False)
    await world.sees("decode-a-1", State.NOT_READY)
    await world.show("decode-a-1")
    await world.sees("decode-a-1", State.WARM)

    await world.delete("decode-a-0")
    await world.sees("decode-a-0", State.LEAVING)
    legs = world.engine["decode-a-0"].counts.legs.total()
    await asyncio.sleep(0.2)
    assert world.engine["decode-a-0"].counts.legs.total() == legs
    await world.end("decode-a-0")
    await world.sees("decode-a-0", None)

    before = next(e for e in world.endpoints if e.name == "prefill-a-0")
    await world.engine["prefill-a-0"].restart()
    await world.show("prefill-a-0", restarts=1)
    await eventually(lambda: next(e for e in world.endpoints if e.name == before.name).generation > before.generation)
    await world.all_warm("prefill-a-0", "decode-a-1")
    stop.set()
    await requests
    assert failures == []
    assert (await world.complete()).headers["x-pdx-prefill"] == "prefill-a-0"


async def test_a_deletion_is_seen_at_once(world: PodWorld) -> None:
    names = [f"decode-a-{number}" for number in range(5)]
    await world.start(*names)
    delays = []
    for name in names[1:]:
        began = time.monotonic()
        await world.delete(name)
        await world.sees(name, State.LEAVING)
        delays.append(time.monotonic() - began)
    assert max(delays) < AT_ONCE_SECONDS, delays


@pytest.mark.timeout(120)
async def test_the_api_server_goes_away_and_comes_back(world: PodWorld) -> None:
    await world.start("prefill-a-0", "decode-a-0", "decode-a-1")
    loop, stop, failures = asyncio.get_running_loop(), asyncio.Event(), list[object]()
    requests = asyncio.create_task(steady(world, stop, failures))
    for grace in (2.0, 0.0):
        await loop.run_in_executor(CONTROL_PLANE_THREAD, world.plane.stop_apiserver, grace)
        await asyncio.sleep(1.0)
        assert [e.state for e in world.endpoints] == [State.WARM] * 3, "it keeps the pods of its last list"
        await loop.run_in_executor(CONTROL_PLANE_THREAD, world.plane.start_apiserver)
    await world.delete("decode-a-0")
    # Within 20 s, Kubernetes' pod garbage collector marks a pod as Failed that is deleted and has no node.
    await eventually(lambda: world.state_of("decode-a-0") in (State.LEAVING, None), 30.0)
    await world.end("decode-a-0")
    await world.add("decode-a-2")
    await world.show("decode-a-2")
    await world.all_warm("prefill-a-0", "decode-a-1", "decode-a-2")
    stop.set()
    await requests
    assert failures == []


async def test_what_happens_while_it_is_not_watched_is_caught_up(
    world: PodWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """A version that is too old (410) makes it list anew."""
    await world.start("decode-a-0")
    updates: list[list[str]] = []

    def publish(specs: Any) -> None:
        updates.append(sorted(spec.name for spec in specs))

    api = await ApiServer.connect("pdx-test", 1, 1)
    follower = PodDiscovery(world.namespace, NAME, lambda: 0.5).informer(api, publish)
    follower._version, follower._listed = "1", time.monotonic()
    with pytest.raises(ExpiredError):
        await follower._watch()
    task = asyncio.create_task(follower.run())
    await eventually(lambda: updates)
    await world.add("decode-a-1")
    await world.show("decode-a-1")
    await eventually(lambda: updates[-1] == ["decode-a-0", "decode-a-1"])
    task.cancel()
    await api.close()
    assert updates[0] == ["decode-a-0"]
    assert _logged(caplog) == []


async def test_a_forbidden_watch_is_logged_once_and_tried_again(
    world: PodWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.grant([{**RULES[0], "verbs": ["get"]}])
    await world.add("decode-a-0")
    await world.show("decode-a-0")
    discovery = PodDiscovery(world.namespace, NAME, lambda: 0.0)
    await world.start_gateway(warm=False, discovery=discovery, endpoints=())
    await asyncio.sleep(1.0)
    assert (await world.call("GET", f"{world.admin}/readyz")).status == 503
    await world.kubectl("apply", "-f", "-", stdin=access("gateway", RULES))
    await world.all_warm("decode-a-0")
    assert (await world.call("GET", f"{world.admin}/readyz")).status == 200
    await eventually(lambda: len(_logged(caplog)) > 1)
    first, second = _logged(caplog)
    assert "cannot watch pods" in first
    assert "pods is forbidden" in first
    assert second == "watches pods again."


def _logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "pdx_api.kube.informer"]


async def test_pods_of_others_are_none_of_its_business(world: PodWorld) -> None:
    await world.start("decode-a-0")
    api = await world.pods()
    alien = {"pdx.dev/deployment": "other", "pdx.dev/role": "decode", "pdx.dev/revision": "a"}
    for name, labels in {
        "alien": alien,
        "gateway": {**alien, "pdx.dev/deployment": NAME, "pdx.dev/role": "gateway"},
    }.items():
        spec = {"schedulerName": "nobody", "containers": [{"name": "engine", "image": "none.invalid/x"}]}
        pod: Any = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
        await api.create_namespaced_pod(world.namespace, pod)
        ips = {"podIP": "127.0.0.99", "podIPs": [{"ip": "127.0.0.99"}]}
        await api.patch_namespaced_pod_status(name, world.namespace, {"status": ips})
    await world.add("decode-a-1")
    await world.show("decode-a-1")
    await world.all_warm("decode-a-0", "decode-a-1")
    assert len(world.endpoints) == 2


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_program_serves_drains_and_ends(workers: int, world: PodWorld) -> None:
    for name in ("prefill-a-0", "decode-a-0"):
        await world.add(name)
        await world.show(name)
    await world.grant(RULES)
    listen, admin = free_port(), free_port()
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdx_proxy", "--deployment", NAME, "--namespace", world.namespace),
        *("--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}", "--workers", str(workers)),
        *("--drain-seconds", "1"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(world.kubeconfig)},
    )
    try:
        assert program.stdout is not None
        assert b"serving on" in await program.stdout.readline()

        async def probe(path: str) -> int:
            return (await world.call("GET", f"http://127.0.0.1:{admin}{path}")).status

        async def complete() -> str:
            url = f"http://127.0.0.1:{listen}{Shape().path}"
            return (await world.call("POST", url, Shape().body())).text

        assert await probe("/healthz") == 200
        async with asyncio.timeout(20):
            while await probe("/readyz") != 200:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)
        assert await complete() == Shape().expected()
        state = json.loads((await world.call("GET", f"http://127.0.0.1:{admin}/pdx/state")).raw)
        assert {each["name"]: each["pod"] for each in state["endpoints"]} == {n: n for n in world.engine}
        reader, writer = await asyncio.open_connection("127.0.0.1", listen)
        writer.write(request_of(Shape(stream=True).body(tokens=2000)))
        await reader.readuntil(b"data: ")
        program.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert (await probe("/readyz"), await probe("/healthz")) == (503, 200)
        assert await complete() == Shape().expected(), "it serves on for a moment"
        assert (await reader.read(-1)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()
        _, errors = await program.communicate()
        assert (program.returncode, errors) == (0, b"")
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
