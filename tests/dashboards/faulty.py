"""The rig: deployments, each broken in one way, watched by a Prometheus and an Alertmanager with PDX's alerts.

Durations of the rules are divided by `faster`, so that ten minutes take 24 seconds; latencies of requests are not
scaled. What was normal for a day is written into Prometheus before it starts.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from pdx_api.names import Order
from pdx_api.settings.gateway import Verification
from pdx_proxy.config.settings import Limits
from pdx_proxy.health.history import WINDOWS, _Speed
from pdx_proxy.verification import record, suspension
from pdx_sim import FaultKind
from pdx_sim.settings import OnLoadFailure
from scripts.alerts import rules_file
from tests.dashboards import further
from tests.dashboards.faults import FAULTS
from tests.dashboards.inspection import Inspected, inspected, topped
from tests.dashboards.scene import Act, Scene, block_transfers, object_summary, scene
from tests.dashboards.server import Alertmanager, alertmanager, backfill, prometheus
from tests.documents import ROOT

Fired = tuple[str, str]
"""Deployment, or the operator's namespace, and alert."""
Cause = Callable[[Scene], Coroutine[Any, Any, None]]

FASTER: Final = 25
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(
    r"(?<=\[)(\d+)([smhd])(?=\])|(?<=offset )(\d+)([smhd])|(?<=for: )(\d+)([smhd])$|(?<=interval: )(\d+)([smhd])$", re.M
)
_ROOMY: Final = Limits(max_in_flight_per_decode=200, max_requests=500, max_wait_seconds=60.0)
_NORMAL: Final = {"pdx:first_token_seconds:busy": 0.6, "pdx:token_seconds:busy": 0.06}
"""What was normal for a day, in seconds: more than the engines need, so that a machine that stops is no fault."""
_PAUSE: Final = 0.2
"""Between two requests of a client, in seconds. Without it, the clients keep the one loop of everything busy."""
_PATIENT_P: Final = {"lease_seconds": 30.0}
_PATIENT_D: Final = {"decode_token_seconds": 0.1, "side_channel_timeout": 5.0}
"""So that a machine that stops for a second is no fault."""


def hurried(rules: str, faster: float) -> str:
    """The rules with every duration divided, in milliseconds."""

    def shorter(match: re.Match[str]) -> str:
        number, unit = (part for part in match.groups() if part)
        return f"{int(number) * _UNITS[unit] * 1000 / faster:.0f}ms"

    return _DURATION.sub(shorter, rules)


async def _kill_gateway(scene: Scene) -> None:
    await scene.world.gateway.stop()
    scene.world.control = None


async def _kill_p(scene: Scene) -> None:
    await scene.world.prefill[-1].kill()


async def _kill_d(scene: Scene) -> None:
    await scene.world.d.kill()


async def _slow_d(scene: Scene) -> None:
    scene.world.fault(scene.world.d, FaultKind.SLOW, factor=8.0, count=None)


async def _break_streams(scene: Scene) -> None:
    scene.world.fault(scene.world.d, FaultKind.DIE_AFTER_EVENTS, events=4, probability=0.2, count=None)


async def _block_one(scene: Scene) -> None:
    await scene.world.prefill[-1].station.channel.close()


async def _flap(scene: Scene) -> None:
    while True:
        await scene.world.prefill[-1].kill()
        await asyncio.sleep(0.8)
        await scene.world.prefill[-1].restart()
        await asyncio.sleep(1.0)


@dataclass(frozen=True, slots=True)
class Broken:
    """How a deployment of the table is set up and broken."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """For `scene`."""
    cause: Cause | None = None
    clients: int = 2
    conditions: Mapping[str, bool] = field(default_factory=dict)
    """What the operator reports after the fault; before it, the deployment is available and not degraded."""
    gateways: int = 1
    doctor: Sequence[str] = ()
    """What `pdx doctor` reports at least: impact and cause. Empty: nothing, with code 0."""


_BROKEN: Final = {"available": False, "degraded": True}
_DEGRADED: Final = {"degraded": True}
BROKEN: Final = {
    "healthy": Broken({"d": {"max_running": 8}}, None, 8),
    "no-gateway": Broken({}, _kill_gateway, 2, _BROKEN, doctor=("Unavailable", "GatewaySilent")),
    "no-d": Broken({}, _kill_d, 2, _BROKEN, doctor=("Unavailable", "EngineUnhealthy")),
    "no-p": Broken({}, _kill_p, 2, _DEGRADED, doctor=("NotSplitting", "EngineUnhealthy")),
    "one-p": Broken({"prefill": 2}, _kill_p, 2, _DEGRADED, doctor=("EngineUnhealthy",)),
    "slow-d": Broken({}, _slow_d, doctor=("TokensSlow",)),
    "full": Broken(
        {"d": {"max_running": 2}, "limits": Limits(max_requests=500, max_wait_seconds=60.0)},
        *(None, 16),
        doctor=("FirstTokenLate", "QueueLong"),
    ),
    "blocked": Broken({}, block_transfers, doctor=("NotSplitting", "PortsBlocked")),
    "blocked-fail": Broken(
        {"d": {"on_load_failure": OnLoadFailure.FAIL}}, block_transfers, doctor=("NotSplitting", "HandoffFails")
    ),
    "wrong-order": Broken({"d": {"order": Order.DECODE_FIRST}}, doctor=("NotSplitting",)),
    "errors": Broken({"d": {"decode_token_seconds": 0.05}}, _break_streams, 12, doctor=("RequestsFail", "EnginesFail")),
    "partial": Broken({"prefill": 2}, _block_one, doctor=("PortsBlocked",)),
    "flapping": Broken({"prefill": 2}, _flap, 6, doctor=("EngineFlapping",)),
    "half-gateway": Broken({}, further.cut_off, 6, _DEGRADED, 2, ("RequestsFail", "EngineNotReached")),
    "slow-kv": Broken({}, further.slow_kv, 6, doctor=("FirstTokenLate", "HandoffSlow")),
    "slow-burn": Broken(
        {"decode": 2, "d": {"decode_token_seconds": 0.05}},
        further.lose_some_streams,
        12,
        doctor=("RequestsFail", "AnswersBreak"),
    ),
    "nonsense": Broken({}, further.send_nonsense),
}
"""The deployments of the rig that serve requests, by their names in the table."""


def expected_alerts() -> set[Fired]:
    """All alerts that must fire."""
    return {(fault.name, fault.alert) for fault in FAULTS if fault.alert}


def alert_of(name: str) -> str:
    """The alert of a deployment."""
    return next(fault.alert for fault in FAULTS if fault.name == name)


async def confirmed(scene: Scene, alert: str) -> str:
    """Run the command of an alert's runbook against its broken deployment; the expected lines that it does not print.

    Commands for a cluster are left out, and so are those of a gateway that is gone. N is a number, ENGINE a name.
    """
    page = (ROOT / "docs" / "runbooks" / f"{alert}.md").read_text(encoding="utf-8") if alert else ""
    blocks = re.findall(r"```(?:sh|text)\n(.*?)```", page.partition("## Mitigate")[0], re.S)
    if scene.world.control is None or not blocks or "localhost:9090" not in blocks[0]:
        return ""
    commands = [line for line in blocks[0].splitlines() if not line.startswith("kubectl")]
    script = "\n".join(commands).replace("localhost:9090", str(scene.world.gateway.admin))
    process = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    lines = blocks[1].splitlines()
    return "\n".join(line for line in lines if not re.search(_pattern(line), output.decode()))


def _pattern(line: str) -> str:
    return re.sub(r"\bN$", "[0-9.]+", re.escape(line).replace("ENGINE", '[^"]+'))


class Rig:
    """Everything, started and warm."""

    def __init__(
        self, scenes: Mapping[str, Scene], manager: Alertmanager, seconds: float, interval: float = 0.0
    ) -> None:
        """`interval`: seconds between two samples of `pdx top`; 0: it does not run."""
        self._scenes, self._manager, self._seconds, self._interval = scenes, manager, seconds, interval
        self._admins = {name: [f"http://{each.admin}" for each in scene.gateways] for name, scene in scenes.items()}
        self.stall = 0.0
        """The longest time for which the machine ran nothing of this, in seconds."""
        self.confirmed: Mapping[str, str] = {}
        """What each runbook's command shows that its page does not, by deployment: empty if all is there."""
        self.found: Mapping[str, Inspected] = {}
        """What `pdx doctor` reports, by deployment."""
        self.shown: Mapping[str, Sequence[str]] = {}
        """The problems that `pdx top` shows, by deployment."""

    async def run(self, quiet: float) -> dict[Fired, float]:
        """Load all deployments for a while, then break them; the alerts, with the seconds after the fault."""
        loads = [asyncio.create_task(self._load(name, scene)) for name, scene in self._scenes.items()]
        loads.append(asyncio.create_task(self._watch()))
        await asyncio.sleep(quiet)
        assert not self._manager.fired, f"before any fault: {self._manager.fired}"
        self._report(after=True)
        causes = [asyncio.create_task(b.cause(self._scenes[n])) for n, b in BROKEN.items() if b.cause is not None]
        causes.append(asyncio.create_task(self._scenes["nonsense"].end_operator()))
        began = time.time()
        try:
            await self._manager.wait(self._seconds)
            await self._inspect()
        finally:
            for task in (*loads, *causes):
                task.cancel()
            await asyncio.gather(*loads, *causes, return_exceptions=True)
        return {alert: max(0.0, when - began) for alert, when in self._manager.fired.items()}

    async def _inspect(self) -> None:
        lines = await asyncio.gather(*(confirmed(scene, alert_of(name)) for name, scene in self._scenes.items()))
        found = await asyncio.gather(*(inspected(admins) for admins in self._admins.values()))
        tops = [topped(admins, self._interval) for admins in self._admins.values() if self._interval]
        shown = await asyncio.gather(*tops)
        self.confirmed = dict(zip(self._scenes, lines, strict=True))
        self.found = dict(zip(self._scenes, found, strict=True))
        self.shown = dict(zip(self._scenes, shown, strict=False))

    def report_before(self) -> None:
        """What the operator reports while all is well."""
        self._report(after=False)

    def _report(self, *, after: bool) -> None:
        summaries = {}
        for name, broken in {**BROKEN, "own-router": Broken(conditions=_BROKEN)}.items():
            summaries[f"default/{name}"] = object_summary(**(broken.conditions if after else {}))
        if after:
            behind = object_summary(ready=False, behind=True, since=time.time() - 7200)
            summaries["default/old"] = behind
        self._scenes["healthy"].summaries = summaries

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.1)
            self.stall = max(self.stall, time.monotonic() - before - 0.1)

    async def _load(self, name: str, scene: Scene) -> None:
        await scene.play([Act(name, self._seconds * 2, BROKEN[name].clients, pause=_PAUSE)])


@asynccontextmanager
async def rig(folder: Path, seconds: float, faster: float = FASTER, every: float = 1.0) -> AsyncIterator[Rig]:
    """All deployments; `seconds` is how long they are watched after the fault, and `every` is between two scrapes."""
    usual = {"prefill": 1, "decode": 1, "limits": _ROOMY, "verification": Verification(2.0)}
    async with AsyncExitStack() as stack:
        stack.enter_context(patch.multiple(record, _RETRY_SECONDS=0.5))
        stack.enter_context(patch.multiple(suspension, WATCH_SECONDS=2.0))
        scenes = {}
        for name, broken in BROKEN.items():
            settings = {**usual, **broken.settings}
            settings |= {"p": _PATIENT_P, "d": {**_PATIENT_D, **settings.get("d", {})}}
            scenes[name] = await stack.enter_async_context(scene(name, warm=name != "wrong-order", **settings))
            if broken.gateways > 1:
                await stack.enter_async_context(further.second_gateway(scenes[name]))
            for gateway in scenes[name].gateways:
                gateway.history._speeds.extend([_Speed(*_NORMAL.values())] * WINDOWS)
        targets = [target for each in scenes.values() for target in each.engines_and_gateway]
        targets += [scenes["healthy"].operator("pdx-system"), scenes["nonsense"].operator("pdx-team")]
        past = {(metric, name): value for metric, value in _NORMAL.items() for name in scenes}
        await backfill(folder, past, 86400 / faster)
        manager = await stack.enter_async_context(alertmanager(folder))
        found = Rig(scenes, manager, seconds, 0.0 if faster > 1 else every)
        found.report_before()
        rules = {"pdx.rules.yaml": hurried(rules_file(), faster)}
        await stack.enter_async_context(prometheus(folder, targets, rules, every, manager.address))
        yield found


def misjudged(found: Mapping[str, Inspected], shown: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Where `pdx doctor` and `pdx top` report something else than expected, in sentences."""
    wrong = []
    for name, report in found.items():
        expected = BROKEN[name].doctor
        if report.code != bool(expected) or not set(expected) <= set(report.causes):
            wrong.append(f"{name}: doctor ends with {report.code} and reports {report.causes}")
        if expected and not shown.get(name, ["not run"]):
            wrong.append(f"{name}: top shows no problem")
    return wrong


def wrong(seen: Mapping[Fired, float], minute: float | None = None) -> Sequence[str]:
    """What differs from the table, in sentences. `minute`: seconds of a minute, to check when alerts fired."""
    expected = expected_alerts()
    found = [f"{name}: {alert} did not fire" for name, alert in sorted(expected - set(seen))]
    found += [f"{name}: {alert} fired" for name, alert in sorted(set(seen) - expected)]
    for fault in FAULTS:
        when = seen.get((fault.name, fault.alert), 0.0)
        if minute is not None and when > fault.minutes * minute:
            found.append(f"{fault.name}: {fault.alert} fired after {when:.0f} s")
    return found
