"""Faulty deployments, each with the alerts that it causes, and a healthy one.

Durations are a fiftieth of those in the rules, so that a quarter of an hour takes eighteen seconds; latencies of
requests are not scaled.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdx_proxy.config.settings import Limits, Verification
from scripts.alerts import rules_file
from tests.dashboards.scene import Act, Scene, block_transfers, object_summary, scene
from tests.dashboards.server import PrometheusServer, prometheus

FASTER: Final = 50
SCRAPE_SECONDS: Final = 1.0
"""Between two scrapes."""
Fired = tuple[str, str, str]
"""Deployment (none for the operator's alerts), alert, and the label that separates rules of one name."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_DURATION: Final = re.compile(r"(?<=\[)(\d+)([smh])(?=\])|(?<=for: )(\d+)([smh])$", re.MULTILINE)
_ROOMY: Final = Limits(in_flight_per_decode=200, queued_requests=500, queue_seconds=30.0)
WITHIN: Final = 130.0
"""Seconds in which all must fire. A quiet machine needs 40; a stall of some seconds begins a rule's `for` anew."""
PAUSE: Final = 0.1
"""Between two requests of a client, in seconds. Without it, the clients keep the one loop of everything busy, and then
requests wait at engines that have room."""


def hurried(rules: str) -> str:
    """The rules with every duration divided, in milliseconds."""

    def shorter(match: re.Match[str]) -> str:
        number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
        return f"{int(number) * _UNITS[unit] * 1000 // FASTER}ms"

    return _DURATION.sub(shorter, rules)


@dataclass(frozen=True)
class Faulty:
    """A deployment with a fault."""

    name: str
    alerts: frozenset[tuple[str, str]]
    """The alerts that must fire: names, and the label that separates rules of one name."""
    clients: int
    settings: Mapping[str, Any]
    """For `scene`."""
    fault: Callable[[Scene], Coroutine[Any, Any, None]] | None = None
    while_loaded: Callable[[Scene], Coroutine[Any, Any, None]] | None = None


async def flap(scene: Scene) -> None:
    """A P dies and comes back, again and again."""
    for _ in range(8):
        await asyncio.sleep(0.7)
        await scene.world.prefill[1].kill()
        await asyncio.sleep(0.3)
        await scene.world.prefill[1].restart()


async def neglect(scene: Scene) -> None:
    """An operator that does not reconcile a spec, and a rollout that has taken two hours."""
    behind = object_summary(ready=False, behind=True, since=time.time() - 7200)
    scene.summaries = {**scene.summaries, "default/old": behind}


FAULTY: Final = (
    # Patient, so that a machine that stops for a second is no fault.
    Faulty(
        "healthy",
        frozenset(),
        4,
        {"limits": _ROOMY, "p": {"lease_seconds": 30.0}, "d": {"side_channel_timeout": 5.0}},
    ),
    Faulty(
        "blocked",
        frozenset({("PDXTransferProbeFailing", "")}),
        4,
        {"limits": _ROOMY},
        block_transfers,
    ),
    Faulty(  # without probes, no pair is suspended
        "blocked-unprobed",
        frozenset({("PDXKVNotMoving", ""), ("PDXKVPinnedTooLong", "")}),
        4,
        {"limits": _ROOMY, "verification": Verification(0.0)},
        block_transfers,
    ),
    Faulty("flapping", frozenset({("PDXEndpointFlapping", "")}), 4, {"limits": _ROOMY}, None, flap),
    Faulty(
        "slow-path",
        frozenset({("PDXHandoffSlow", ""), ("PDXFirstTokenBudgetBurn", "fast")}),
        12,
        {"d": {"transfer_seconds": 3.0}, "limits": _ROOMY},
    ),
    Faulty(
        "few-p",
        frozenset({("PDXPrefillSaturated", ""), ("PDXRatioWrong", "prefill")}),
        24,
        {"prefill": 1, "p": {"prefill_token_seconds": 800e-6, "prefill_slots": 2}, "limits": _ROOMY},
    ),
    Faulty(
        "few-d",
        frozenset({("PDXDecodeSaturated", ""), ("PDXRatioWrong", "decode")}),
        24,
        {
            "decode": 1,
            "p": {"prefill_slots": 64},
            "d": {"max_running": 3, "decode_token_seconds": 0.03},
            "limits": _ROOMY,
        },
    ),
)
OPERATOR: Final = frozenset({("PDXRolloutStuck", ""), ("PDXOperatorNotReconciling", "")})
SLOW: Final = frozenset({("PDXFirstTokenBudgetBurn", "slow")})
"""Takes six hours: four minutes of these. Shown by promtool alone."""


@asynccontextmanager
async def deployments() -> AsyncIterator[list[Scene]]:
    """All deployments, started and warm."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(scene(each.name, **each.settings)) for each in FAULTY]


async def cause(faulty: Faulty, scene: Scene) -> None:
    """Load a deployment and break it."""
    during = asyncio.create_task(faulty.while_loaded(scene)) if faulty.while_loaded else None
    try:
        await scene.play([Act(faulty.name, WITHIN, faulty.clients, faulty.fault, pause=PAUSE)])
    finally:
        if during is not None:
            during.cancel()
            await asyncio.gather(during, return_exceptions=True)


async def firing(server: PrometheusServer) -> set[Fired]:
    """All alerts that fire now."""
    found = set()
    for alert in (await server.get("alerts"))["alerts"]:
        labels = alert["labels"]
        assert "<error" not in str(alert["annotations"]), "a template does not work"
        if alert["state"] == "firing":
            own = labels.get("burn") or labels.get("more") or ""
            found.add((labels.get("pdx_dev_deployment", ""), labels["alertname"], own))
    return found


async def watched(server: PrometheusServer, hoped: set[Fired], seconds: float) -> dict[Fired, float]:
    """Every alert that fired until all hoped ones did, with its second."""
    seen: dict[Fired, float] = {}
    began = time.monotonic()
    while time.monotonic() < began + seconds and not hoped <= set(seen):
        for each in await firing(server):
            seen.setdefault(each, time.monotonic() - began)
        await asyncio.sleep(0.25)
    return seen


def expected_alerts() -> set[Fired]:
    """All alerts that must fire."""
    of_deployments = {(faulty.name, *alert) for faulty in FAULTY for alert in faulty.alerts}
    return of_deployments | {("", *alert) for alert in OPERATOR}


async def all_fire(folder: Path) -> dict[Fired, float]:
    """Cause everything; returns the alerts that fired, with the second of the first time."""
    async with deployments() as scenes:
        targets = [target for each in scenes for target in each.engines_and_gateway] + scenes[0].targets[-1:]
        await neglect(scenes[0])
        async with prometheus(folder, targets, {"pdx.rules.yaml": hurried(rules_file())}, SCRAPE_SECONDS) as server:
            causes = [asyncio.create_task(cause(*pair)) for pair in zip(FAULTY, scenes, strict=True)]
            try:
                return await watched(server, expected_alerts(), WITHIN)
            finally:
                for task in causes:
                    task.cancel()
                await asyncio.gather(*causes, return_exceptions=True)
