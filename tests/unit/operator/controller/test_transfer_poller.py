"""What gateways say of their canaries, asked of stub admin servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import pytest
from aiohttp import web

from pdx_api.names import GATEWAY_CONTAINER, PORT_ADMIN
from pdx_api.verification import VERDICT_PATH, Broken, Cause, Finding, Verdict, combined
from pdx_operator.controller import transfer_poller
from pdx_operator.controller.transfer_poller import TransferPoller, admin_url
from pdx_operator.kube.cache import Key
from pdx_operator.kube.client import AwayError, Cluster
from pdx_operator.observed.workloads import Heard
from tests.component.harness import eventually

KEY = Key("ns", "m")
WELL = Finding(Verdict.VERIFIED, pairs=1, possible=1)
BROKEN = Finding(Verdict.BROKEN, possible=1, broken=(Broken("p", "d", "seen", Cause.PORTS),), broken_pairs=1)
NOTHING = Finding(Verdict.UNKNOWN, "not yet")


class Gateway:
    """An admin port that waits for news as a gateway's does."""

    def __init__(self) -> None:
        self.finding = WELL
        self.version = 0
        self.asked: list[str] = []
        self.status = 200
        self.changed = asyncio.Event()
        self.port = 0
        self._runner = web.AppRunner(self._app(), shutdown_timeout=0.1)

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(VERDICT_PATH, self._answer)
        return app

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.query["after"])
        if self.status != 200:
            return web.Response(status=self.status)
        if request.query["after"] == str(self.version):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), float(request.query["wait"]))
        return web.json_response({"stamp": str(self.version), "finding": self.finding.as_json(), "lastSuccess": None})

    def say(self, finding: Finding) -> None:
        self.finding, self.version = finding, self.version + 1
        self.changed.set()
        self.changed = asyncio.Event()


class Pods:
    """The one request that is made of the API server."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.lists = 0
        self.away = False

    async def list(self, kind: object, namespace: str, **query: str) -> dict[str, Any]:
        assert (namespace, query["labelSelector"]) == ("ns", "pdx.dev/deployment=m,pdx.dev/role=gateway")
        self.lists += 1
        if self.away:
            raise AwayError("away")
        return {"items": self.items}


def pod(port: int, ready: str = "True", **metadata: Any) -> dict[str, Any]:
    ports = [{"name": PORT_ADMIN, "containerPort": port}]
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": GATEWAY_CONTAINER, "ports": ports}]},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
    }


class Stage:
    def __init__(self) -> None:
        self.gateways: list[Gateway] = []
        self.pods = Pods()
        self.woken = asyncio.Event()
        self.canaries = TransferPoller(cast("Cluster", self.pods), self._wake, lambda: 0.5)

    def _wake(self, key: Key) -> None:
        assert key == KEY
        self.woken.set()

    async def add(self) -> Gateway:
        gateway = Gateway()
        await gateway.start()
        self.gateways.append(gateway)
        self.pods.items.append(pod(gateway.port))
        return gateway

    async def heard(self, expected: Heard) -> None:
        """Wait until that is heard, by being woken."""
        async with asyncio.timeout(10):
            while self.canaries.of(KEY) != expected:
                await self.woken.wait()
                self.woken.clear()


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(transfer_poller, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(transfer_poller, "_RETRY_SECONDS", 0.02)
    stage = Stage()
    yield stage
    await stage.canaries.close()
    for gateway in stage.gateways:
        await gateway.stop()


@pytest.mark.machine
async def test_a_verdict_wakes_the_loop_and_the_next_one_too(stage: Stage) -> None:
    gateway = await stage.add()
    assert stage.canaries.of(KEY) == Heard()
    stage.canaries.follow(KEY, "a")
    await stage.heard(Heard(WELL))
    gateway.say(BROKEN)
    await stage.heard(Heard(BROKEN))
    stage.woken.clear()
    gateway.version += 1
    gateway.changed.set()
    await eventually(lambda: gateway.asked[-1] == "2")
    assert not stage.woken.is_set(), "the same once more is no news"
    assert stage.pods.lists == 1
    stage.canaries.forget(KEY)
    assert stage.canaries.of(KEY) == Heard()


@pytest.mark.machine
async def test_several_gateways_are_one(stage: Stage) -> None:
    first, second = await stage.add(), await stage.add()
    first.finding = NOTHING
    stage.canaries.follow(KEY, "a")
    await stage.heard(Heard(WELL))
    first.say(BROKEN)
    await stage.heard(Heard(BROKEN))
    first.say(WELL)
    second.say(NOTHING)
    await stage.heard(Heard(WELL))


@pytest.mark.machine
async def test_other_gateways_are_looked_for(stage: Stage) -> None:
    old = await stage.add()
    stage.canaries.follow(KEY, "a")
    await stage.heard(Heard(WELL))
    stage.pods.items.clear()
    new = await stage.add()
    new.finding = BROKEN
    stage.canaries.follow(KEY, "b")
    await stage.heard(Heard(BROKEN))
    stage.canaries.follow(KEY, "b")
    assert (stage.pods.lists, len(old.asked) >= 1) == (2, True)


@pytest.mark.machine
@pytest.mark.parametrize("status", [404, 500])
async def test_gateways_that_do_not_tell(stage: Stage, status: int) -> None:
    gateway = await stage.add()
    gateway.status = status
    stage.canaries.follow(KEY, "a")
    await stage.heard(Heard(silent=True))
    gateway.status = 200
    await stage.heard(Heard(WELL))


async def test_no_gateway_is_found(stage: Stage) -> None:
    stage.pods.away = True
    stage.canaries.follow(KEY, "a")
    await eventually(lambda: stage.pods.lists)
    assert stage.canaries.of(KEY) == Heard(), "an API server that is away says nothing of gateways"
    stage.pods.away = False
    await stage.heard(Heard(silent=True))


@pytest.mark.parametrize(
    ("found", "url"),
    [
        (pod(9090), f"http://127.0.0.1:9090{VERDICT_PATH}"),
        (pod(9090, "False"), None),
        (pod(9090, deletionTimestamp="now"), None),
        (pod(9090) | {"status": {}}, None),
    ],
)
def test_where_a_gateway_is_asked(found: dict[str, Any], url: str | None) -> None:
    assert admin_url(found) == url


@pytest.mark.parametrize(
    ("findings", "expected"),
    [([], None), ([NOTHING, WELL], WELL), ([WELL, BROKEN, NOTHING], BROKEN), ([NOTHING], NOTHING)],
)
def test_what_gateways_know_together(findings: list[Finding], expected: Finding | None) -> None:
    assert combined(findings) == expected


@pytest.mark.parametrize("finding", [WELL, BROKEN, NOTHING])
def test_a_finding_arrives_as_it_was_sent(finding: Finding) -> None:
    assert Finding.read(finding.as_json()) == finding
