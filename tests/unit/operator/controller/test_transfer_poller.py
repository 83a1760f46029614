"""Polls of stub admin servers for the results of transfer probes."""

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
from pdx_operator.kube.client import Cluster, UnavailableError
from pdx_operator.kube.resources import Key
from pdx_operator.observed.transfer_report import TransferReport
from tests.component.harness import eventually

KEY = Key("ns", "m")
WELL = Finding(Verdict.VERIFIED, pairs=1, possible=1)
BROKEN = Finding(Verdict.BROKEN, possible=1, broken=(Broken("p", "d", "seen", Cause.PORTS),), broken_pairs=1)
NOTHING = Finding(Verdict.UNKNOWN, "not yet")


class Gateway:
    """An admin port that answers long polls as a gateway does."""

    def __init__(self) -> None:
        self.finding = WELL
        self.version = 0
        self.requests: list[str] = []
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
        self.requests.append(request.query["after"])
        if self.status != 200:
            return web.Response(status=self.status)
        if request.query["after"] == str(self.version):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), float(request.query["wait"]))
        return web.json_response({"stamp": str(self.version), "finding": self.finding.as_json(), "lastSuccess": None})

    def publish(self, finding: Finding) -> None:
        self.finding, self.version = finding, self.version + 1
        self.changed.set()
        self.changed = asyncio.Event()


class Pods:
    """An API server that lists the pods of gateways."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.lists = 0
        self.unavailable = False

    async def list(self, kind: object, namespace: str, **query: str) -> dict[str, Any]:
        assert (namespace, query["labelSelector"]) == ("ns", "pdx.dev/deployment=m,pdx.dev/role=gateway")
        self.lists += 1
        if self.unavailable:
            raise UnavailableError("unavailable")
        return {"items": self.items}


def pod(port: int, ready: str = "True", **metadata: Any) -> dict[str, Any]:
    ports = [{"name": PORT_ADMIN, "containerPort": port}]
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": GATEWAY_CONTAINER, "ports": ports}]},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
    }


class Setup:
    def __init__(self) -> None:
        self.gateways: list[Gateway] = []
        self.pods = Pods()
        self.notified = asyncio.Event()
        self.poller = TransferPoller(cast("Cluster", self.pods), self._notify, lambda: 0.5)

    def _notify(self, key: Key) -> None:
        assert key == KEY
        self.notified.set()

    async def add(self) -> Gateway:
        gateway = Gateway()
        await gateway.start()
        self.gateways.append(gateway)
        self.pods.items.append(pod(gateway.port))
        return gateway

    async def receives(self, expected: TransferReport) -> None:
        """Wait for a report, reading only after a notification."""
        async with asyncio.timeout(10):
            while self.poller.report(KEY) != expected:
                await self.notified.wait()
                self.notified.clear()


@pytest.fixture
async def setup(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setup]:
    monkeypatch.setattr(transfer_poller, "_MIN_SECONDS", 0.01)
    monkeypatch.setattr(transfer_poller, "_RETRY_SECONDS", 0.02)
    setup = Setup()
    yield setup
    await setup.poller.close()
    for gateway in setup.gateways:
        await gateway.stop()


@pytest.mark.machine
async def test_every_new_finding_notifies(setup: Setup) -> None:
    gateway = await setup.add()
    assert setup.poller.report(KEY) == TransferReport()
    setup.poller.follow(KEY, "a")
    await setup.receives(TransferReport(WELL))
    gateway.publish(BROKEN)
    await setup.receives(TransferReport(BROKEN))
    setup.notified.clear()
    gateway.version += 1
    gateway.changed.set()
    await eventually(lambda: gateway.requests[-1] == "2")
    assert not setup.notified.is_set(), "an equal finding notifies nobody"
    assert setup.pods.lists == 1
    setup.poller.forget(KEY)
    assert setup.poller.report(KEY) == TransferReport()


@pytest.mark.machine
async def test_several_gateways_are_one(setup: Setup) -> None:
    first, second = await setup.add(), await setup.add()
    first.finding = NOTHING
    setup.poller.follow(KEY, "a")
    await setup.receives(TransferReport(WELL))
    first.publish(BROKEN)
    await setup.receives(TransferReport(BROKEN))
    first.publish(WELL)
    second.publish(NOTHING)
    await setup.receives(TransferReport(WELL))


@pytest.mark.machine
async def test_changed_gateways_are_listed_again(setup: Setup) -> None:
    old = await setup.add()
    setup.poller.follow(KEY, "a")
    await setup.receives(TransferReport(WELL))
    setup.pods.items.clear()
    new = await setup.add()
    new.finding = BROKEN
    setup.poller.follow(KEY, "b")
    await setup.receives(TransferReport(BROKEN))
    setup.poller.follow(KEY, "b")
    assert (setup.pods.lists, len(old.requests) >= 1) == (2, True)


@pytest.mark.machine
@pytest.mark.parametrize("status", [404, 500])
async def test_unreachable_gateways(setup: Setup, status: int) -> None:
    gateway = await setup.add()
    gateway.status = status
    setup.poller.follow(KEY, "a")
    await setup.receives(TransferReport(unreachable=True))
    gateway.status = 200
    await setup.receives(TransferReport(WELL))


async def test_no_gateway_is_found(setup: Setup) -> None:
    setup.pods.unavailable = True
    setup.poller.follow(KEY, "a")
    await eventually(lambda: setup.pods.lists)
    assert setup.poller.report(KEY) == TransferReport(), "without the API server nothing is known of gateways"
    setup.pods.unavailable = False
    await setup.receives(TransferReport(unreachable=True))


@pytest.mark.parametrize(
    ("found", "url"),
    [
        (pod(9090), f"http://127.0.0.1:9090{VERDICT_PATH}"),
        (pod(9090, "False"), None),
        (pod(9090, deletionTimestamp="now"), None),
        (pod(9090) | {"status": {}}, None),
    ],
)
def test_admin_url(found: dict[str, Any], url: str | None) -> None:
    assert admin_url(found) == url


@pytest.mark.parametrize(
    ("findings", "expected"),
    [([], None), ([NOTHING, WELL], WELL), ([WELL, BROKEN, NOTHING], BROKEN), ([NOTHING], NOTHING)],
)
def test_findings_are_combined(findings: list[Finding], expected: Finding | None) -> None:
    assert combined(findings) == expected


@pytest.mark.parametrize("finding", [WELL, BROKEN, NOTHING])
def test_a_finding_survives_json(finding: Finding) -> None:
    assert Finding.read(finding.as_json()) == finding
