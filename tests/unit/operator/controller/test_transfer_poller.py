"""Polls of stub admin servers for the results of transfer probes."""

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from aiohttp import web

from pdx_api.kube.client import Cluster, UnavailableError
from pdx_api.verification import RESULT_PATH, Broken, Cause, Finding, Verdict, combined
from pdx_operator.controller import transfer_poller
from pdx_operator.controller.transfer_poller import TransferPoller, admin_url
from pdx_operator.kube.resources import Key
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.observed.workloads import ObservedGateway
from tests.component.harness import eventually

KEY = Key("ns", "m")
WELL = Finding(Verdict.VERIFIED, pairs=1, possible=1)
BROKEN = Finding(Verdict.BROKEN, possible=1, broken=(Broken("p", "d", "seen", Cause.PORTS),), broken_pairs=1)
NOTHING = Finding(Verdict.UNKNOWN, "not yet")


class Gateway:
    """An admin port that answers long polls as a gateway does."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        self.address = address
        self.port = port
        self.finding = WELL
        self.version = 0
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        """In place of a finding."""
        self.requests: list[str] = []
        self.status = 200
        self.changed = asyncio.Event()
        self._runner = web.AppRunner(self._app(), shutdown_timeout=0.1)

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(RESULT_PATH, self._answer)
        return app

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.address, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.query["after"])
        if self.answer is not None:
            return await self.answer(request)
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

    async def pages(self, kind: object, namespace: str, **query: str) -> AsyncIterator[dict[str, Any]]:
        assert (namespace, query["labelSelector"]) == ("ns", "pdx.dev/deployment=m,pdx.dev/role=gateway")
        self.lists += 1
        if self.unavailable:
            raise UnavailableError("unavailable")
        yield {"items": self.items}

    async def head(self, kind: object, namespace: str, name: str) -> dict[str, Any] | None:
        """ReplicaSets; their Deployments have the uid that follows `of-` in their names."""
        if "-of-" not in name:
            return None
        owner = {"kind": "Deployment", "uid": name.rpartition("-of-")[2], "controller": True}
        return {"metadata": {"uid": f"uid of {name}", "ownerReferences": [owner]}}


def pod(
    address: str = "127.0.0.1", ready: str = "True", *, owner: str = "m-gateway-1-of-u", **metadata: Any
) -> dict[str, Any]:
    reference = {"kind": "ReplicaSet", "name": owner, "uid": f"uid of {owner}", "controller": True}
    return {
        "metadata": {"ownerReferences": [reference], **metadata},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": ready}]},
    }


def followed(ready: int = 1) -> ObservedGateway:
    return ObservedGateway(replicas=1, ready=ready, settled=True, uid="u")


class Setup:
    def __init__(self) -> None:
        self.gateways: list[Gateway] = []
        self.pods = Pods()
        self.notified = asyncio.Event()
        self.port = 0
        self.poller = TransferPoller(cast("Cluster", self.pods), self._notify, lambda: 0.5)

    def _notify(self, key: Key) -> None:
        assert key == KEY
        self.notified.set()

    async def add(self) -> Gateway:
        """A gateway with an address of its own, and the one port of all gateways."""
        gateway = Gateway(f"127.0.0.{len(self.gateways) + 1}", self.port)
        await gateway.start()
        if not self.port:
            self.port = gateway.port
            self.poller = TransferPoller(cast("Cluster", self.pods), self._notify, lambda: 0.5, port=self.port)
        self.gateways.append(gateway)
        self.pods.items.append(pod(gateway.address))
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
async def test_a_gateway_is_polled(setup: Setup) -> None:
    await setup.add()
    setup.poller.follow(KEY, followed())
    await setup.receives(TransferReport(WELL))


@pytest.mark.machine
async def test_every_new_finding_notifies(setup: Setup) -> None:
    gateway = await setup.add()
    assert setup.poller.report(KEY) == TransferReport()
    setup.poller.follow(KEY, followed())
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
    setup.poller.follow(KEY, followed())
    await setup.receives(TransferReport(WELL))
    first.publish(BROKEN)
    await setup.receives(TransferReport(BROKEN))
    first.publish(WELL)
    second.publish(NOTHING)
    await setup.receives(TransferReport(WELL))


@pytest.mark.machine
async def test_changed_gateways_are_listed_again(setup: Setup) -> None:
    old = await setup.add()
    setup.poller.follow(KEY, followed())
    await setup.receives(TransferReport(WELL))
    setup.pods.items.clear()
    new = await setup.add()
    new.finding = BROKEN
    setup.poller.follow(KEY, followed(2))
    await setup.receives(TransferReport(BROKEN))
    setup.poller.follow(KEY, followed(2))
    assert (setup.pods.lists, len(old.requests) >= 1) == (2, True)


@pytest.mark.machine
@pytest.mark.parametrize("status", [404, 500])
async def test_unreachable_gateways(setup: Setup, status: int) -> None:
    gateway = await setup.add()
    gateway.status = status
    setup.poller.follow(KEY, followed())
    await setup.receives(TransferReport(unreachable=True))
    gateway.status = 200
    await setup.receives(TransferReport(WELL))


async def _redirected(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(f"http://127.0.0.2:{request.url.port}{RESULT_PATH}?after=&wait=1")


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with suppress(OSError):
        while True:
            await response.write(b" " * 65536)
    return response


async def _deep(request: web.Request) -> web.StreamResponse:
    return web.Response(text='{"stamp": 1, "finding": ' + "[" * 20_000)


async def _strange(request: web.Request) -> web.StreamResponse:
    return web.json_response({"stamp": "1", "finding": {**WELL.as_json(), "broken": [None], "pairs": "x"}})


@pytest.mark.machine
@pytest.mark.parametrize("answer", [_redirected, _endless, _deep, _strange])
async def test_a_hostile_gateway_is_unreachable_and_polled_again(
    setup: Setup, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> None:
    gateway = await setup.add()
    elsewhere = await setup.add()
    setup.pods.items.pop()
    gateway.answer = answer
    setup.poller.follow(KEY, followed())
    await setup.receives(TransferReport(unreachable=True))
    assert not elsewhere.requests, "no redirect is followed"
    gateway.answer = None
    await setup.receives(TransferReport(WELL))


@pytest.mark.machine
@pytest.mark.parametrize(
    "owner", ["m-gateway-1-of-another", "m-gateway-unknown", "another-1-of-u"], ids=["owner", "missing", "name"]
)
async def test_only_pods_of_the_own_gateway_are_polled(setup: Setup, owner: str) -> None:
    gateway, foreign = await setup.add(), await setup.add()
    setup.pods.items[1] = pod(foreign.address, owner=owner)
    setup.pods.items.append(pod(foreign.address) | {"metadata": {}})
    setup.poller.follow(KEY, followed())
    await setup.receives(TransferReport(WELL))
    assert gateway.requests
    assert not foreign.requests


def test_texts_of_a_finding_are_bounded() -> None:
    broken = {"prefill": "p" * 9999, "decode": "d" * 9999, "seen": "s" * 9999, "cause": Cause.PORTS}
    body = {
        **WELL.as_json(),
        "broken": [broken] * 99,
        "why": "w" * 9999,
        "pairs": 10**30,
        "versions": ["v" * 9999] * 99,
    }
    assert len(repr(Finding.read(body))) < 40_000


async def test_no_gateway_is_found(setup: Setup) -> None:
    setup.pods.unavailable = True
    setup.poller.follow(KEY, followed())
    await eventually(lambda: setup.pods.lists)
    assert setup.poller.report(KEY) == TransferReport(), "without the API server nothing is known of gateways"
    setup.pods.unavailable = False
    await setup.receives(TransferReport(unreachable=True))


@pytest.mark.parametrize(
    ("found", "url"),
    [
        (pod(), f"http://127.0.0.1:9090{RESULT_PATH}"),
        (pod("::1"), f"http://[::1]:9090{RESULT_PATH}"),
        (pod(ready="False"), None),
        (pod(deletionTimestamp="now"), None),
        (pod() | {"status": {}}, None),
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


@pytest.mark.parametrize("finding", [WELL, BROKEN, NOTHING, replace(WELL, versions=("0.32.0",))])
def test_a_finding_survives_json(finding: Finding) -> None:
    assert Finding.read(json.loads(json.dumps(finding.as_json()))) == finding


def test_an_older_gateway_reports_no_versions() -> None:
    body = WELL.as_json()
    del body["versions"]
    assert Finding.read(body) == WELL


@pytest.mark.machine
async def test_a_failed_poll_keeps_nothing_of_the_answer(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreadable(Exception):  # noqa: N818
        """An error whose traceback refers to the answer."""

    failures: list[weakref.ref[Unreadable]] = []

    async def fail(poller: TransferPoller, url: str, stamp: str) -> dict[str, Any]:
        failure = Unreadable()
        failures.append(weakref.ref(failure))
        try:
            raise failure
        finally:
            del failure  # its frame would refer to itself

    await setup.add()
    monkeypatch.setattr(TransferPoller, "_fetch", fail)
    monkeypatch.setattr(transfer_poller, "_RETRY_SECONDS", 60.0)
    setup.poller.follow(KEY, followed())
    await eventually(lambda: failures)
    await eventually(lambda: failures[0]() is None, 2.0)
