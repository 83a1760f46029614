"""A gateway, simulated engines and an operator's metrics page, under load and with faults, as Prometheus sees them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from unittest.mock import patch

import aiohttp
from aiohttp import web

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Verification
from pdx_operator.app.metrics import Metrics
from pdx_operator.app.object_summary import ObjectSummary
from pdx_proxy.config.settings import Health, Limits
from pdx_proxy.health import engine_scraper
from pdx_proxy.process.control import Control
from pdx_sim import FaultKind, SimEngine, SimSettings
from pdx_sim.settings import OnLoadFailure
from tests.component.harness import Shape, World, spec_of
from tests.dashboards.server import Target

ENGINE: Final = SimSettings(
    prefill_token_seconds=60e-6,
    decode_token_seconds=0.012,
    transfer_seconds=0.012,
    jitter=0.3,
    max_running=12,
    num_blocks=2048,
    lease_seconds=1.5,
    side_channel_timeout=0.3,
    on_load_failure=OnLoadFailure.RECOMPUTE,
)
LIMITS: Final = Limits(max_in_flight_per_decode=20, max_requests=12, max_wait_seconds=0.8)
_PROMPT: Final = "Which of the two is the bottleneck, and what is to be done about it? " * 25


@dataclass(frozen=True)
class Act:
    """A part of the scene."""

    name: str
    seconds: float
    clients: int
    """Clients that send one request after the other."""
    fault: Callable[["Scene"], Awaitable[None]] | None = None
    repair: Callable[["Scene"], Awaitable[None]] | None = None
    pause: float = 0.0
    """Seconds that a client waits before its next request."""


class Scene:
    """Owner of everything that is scraped."""

    def __init__(
        self,
        name: str,
        world: World,
        metrics: Metrics,
        operator: str,
        end_operator: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.name = name
        self.world = world
        self.metrics = metrics
        self._operator = operator
        self.end_operator = end_operator
        self.summaries = {
            "default/qwen": object_summary(),
            "default/llama": object_summary(ready=False, since=time.time() - 5),
        }
        """The objects of the operator, by their condition summaries."""
        metrics.add_objects(lambda: self.summaries)
        self.others: list[Control] = []
        """Further gateways for the same engines."""
        self.relays: list[Callable[[], None]] = []
        """Each cuts one way of a further gateway to an engine."""
        self.played: list[tuple[str, float, float]] = []
        """Acts with begin and end, in Unix seconds."""

    @property
    def targets(self) -> list[Target]:
        """With the labels that the chart's PodMonitors and ServiceMonitor give."""
        return [*self.engines_and_gateway, self.operator("pdx-system")]

    def operator(self, namespace: str) -> Target:
        """This scene's operator."""
        labels = {"namespace": namespace, "pod": "pdx-operator-0", "service": "pdx-operator"}
        return Target(self._operator, "pdx-operator", labels)

    @property
    def engines_and_gateway(self) -> list[Target]:
        """Without the operator."""
        own = {"namespace": "default", "pdx_dev_deployment": self.name, "pdx_dev_revision": "a1b2c3d4"}
        targets = []
        for engine, pod in named(self.name, self.world):
            more = {"pod": pod, "container": "engine", "endpoint": "http", "pdx_dev_role": engine.settings.role.value}
            targets.append(Target(f"127.0.0.1:{engine.port}", "pdx-system/pdx-engines", {**own, **more}))
        more = {"container": "gateway", "endpoint": "admin", "pdx_dev_role": "gateway"}
        for number, gateway in enumerate(self.gateways):
            labels = {**own, **more, "pod": f"{self.name}-gateway-{number}"}
            targets.append(Target(str(gateway.admin), "pdx-system/pdx-gateways", labels, honor_labels=True))
        return targets

    @property
    def gateways(self) -> list[Control]:
        """The gateways; AssertionError once the first one is gone."""
        return [self.world.gateway, *self.others]

    async def play(self, acts: Sequence[Act]) -> None:
        """One act after the other."""
        for act in acts:
            begin = time.time()
            if act.fault is not None:
                await act.fault(self)
            await self._load(act)
            if act.repair is not None:
                await act.repair(self)
            self.played.append((act.name, begin, time.time()))

    async def _load(self, act: Act) -> None:
        end = time.monotonic() + act.seconds
        clients = [asyncio.create_task(self._client(number, end, act.pause)) for number in range(act.clients)]
        operator = asyncio.create_task(_work(self.metrics, end))
        await asyncio.gather(*clients, operator)

    async def _client(self, number: int, end: float, pause: float) -> None:
        await asyncio.sleep(number % 12 * 0.12)  # answers in step with each other leave gaps between scrapes
        while time.monotonic() < end:
            number += 1
            with suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(max(0.05, end - time.monotonic()) + 2):
                    await self._send(number)
            await asyncio.sleep(pause)

    async def _send(self, number: int) -> None:
        """Mostly split streams; some requests are whole, refused, or abandoned by their client."""
        url = f"http://{self.gateways[number % len(self.gateways)].listen}{Shape().path}"
        more: dict[str, Any] = {"prompt": _PROMPT[number % 40 :], "tokens": 12 + number % 12}
        match number % 16:
            case 3:
                more["n"] = 2
            case 7:
                more["max_tokens"] = -1
            case 11:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.06):
                        await self.world.call("POST", url, Shape(stream=True).body(**more))
                return
        body = Shape(stream=number % 4 != 0).body(more.pop("prompt"), more.pop("tokens")) | more
        reply = await self.world.call("POST", url, body)
        if reply.status == 503:
            await asyncio.sleep(0.2)  # a patient client would wait for Retry-After


def named(deployment: str, world: World) -> Iterator[tuple[SimEngine, str]]:
    """Engines with their pods' names."""
    for role, engines in (("prefill", world.prefill), ("decode", world.decode)):
        for index, engine in enumerate(engines):
            yield engine, f"{deployment}-{role}-{index}"


def object_summary(
    *, ready: bool = True, behind: bool = False, since: float = 0.0, available: bool = True, degraded: bool = False
) -> ObjectSummary:
    """One object's, by its status; `since` is when its rollout began (Unix seconds)."""
    when = datetime.fromtimestamp(since, UTC).isoformat()
    conditions = [
        {"type": "Ready", "status": str(ready), "reason": "Available" if ready else "Starting"},
        {"type": "Progressing", "status": str(not ready), "reason": "Complete" if ready else "RollingOut"},
        {"type": "Degraded", "status": str(degraded), "reason": "CrashLooping" if degraded else "NothingFound"},
        {"type": "Available", "status": str(available), "reason": "Serving" if available else "DecodeNotReady"},
    ]
    dated = [{**condition, "lastTransitionTime": when} for condition in conditions]
    body = {"metadata": {"generation": 1 + behind}, "status": {"observedGeneration": 1, "conditions": dated}}
    return ObjectSummary.of(body)


async def _work(metrics: Metrics, end: float) -> None:
    """Metrics of a working operator, in the operator's own registry."""
    number = 0
    while time.monotonic() < end:
        number += 1
        metrics.count_reconcile("failed" if number % 5 == 0 else "ok", 0.004 * (number % 7))
        metrics.count_request("GET", 200)
        metrics.count_request("PATCH", 409 if number % 6 == 0 else 500 if number % 5 == 0 else 200)
        await asyncio.sleep(0.2)


@asynccontextmanager
async def scene(
    name: str = "qwen",
    prefill: int = 2,
    decode: int = 2,
    *,
    p: Mapping[str, Any] | None = None,
    d: Mapping[str, Any] | None = None,
    warm: bool = True,
    **gateway: Any,
) -> AsyncIterator[Scene]:
    """Everything, started and warm, for the length of a block; `p` and `d` change the settings of engines."""
    world = World(Order.PREFILL_FIRST)
    in_short_rounds = patch.multiple(engine_scraper, PAUSE_SECONDS=0.5, SAMPLE_SECONDS=0.0)
    try:
        in_short_rounds.start()
        await world.start_engines(
            [replace(ENGINE, role=Role.PREFILL, seed=number, **(p or {})) for number in range(prefill)],
            [replace(ENGINE, role=Role.DECODE, seed=number, **(d or {})) for number in range(decode)],
        )
        specs = tuple(replace(spec_of(engine, world.order), pod=pod) for engine, pod in named(name, world))
        health = Health(slow_start_seconds=0.5)
        await world.start_gateway(
            warm=warm,
            **{"endpoints": specs, "limits": LIMITS, "health": health, "verification": Verification(0.5), **gateway},
        )
        metrics = Metrics(time.time)
        async with _page(metrics) as (address, end):
            yield Scene(name, world, metrics, address, end)
    finally:
        in_short_rounds.stop()
        await world.close()


@asynccontextmanager
async def _page(metrics: Metrics) -> AsyncIterator[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
    async def render(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", render)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}", runner.cleanup
    finally:
        await runner.cleanup()


async def kill_prefill(scene: Scene) -> None:
    """One P dies."""
    await scene.world.prefill[1].kill()


async def restart_prefill(scene: Scene) -> None:
    """It comes back, with another identity."""
    await scene.world.prefill[1].restart()


async def block_transfers(scene: Scene) -> None:
    """No D reaches a P's side channel: every prompt is computed again, and clients see nothing of it."""
    for engine in scene.world.prefill:
        await engine.station.channel.close()


async def restore_transfers(scene: Scene) -> None:
    """The side channels open again."""
    for engine in scene.world.prefill:
        await engine.station.channel.listen("127.0.0.1", engine.side_channel_port)


async def break_decode(scene: Scene) -> None:
    """One D answers errors for a while."""
    scene.world.fault(scene.world.decode[1], FaultKind.ERROR_EVENT, count=12)


ACTS: Final = (
    Act("steady", 4.0, 16),
    Act("a P dies", 5.0, 16, kill_prefill, restart_prefill),
    Act("KV does not move", 10.0, 16, block_transfers, restore_transfers),
    Act("overload", 4.0, 64, break_decode),
)
