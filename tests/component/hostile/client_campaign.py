"""Hostile clients beside ordinary ones, and what it costs them and the gateway."""

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.program import ROOT
from pdx_api.settings.gateway import Keys
from pdx_proxy.config.settings import Limits
from pdx_sim import Violation
from tests.component.hostile.client_behaviours import BEHAVIOURS
from tests.component.hostile.clients import BYTES_PER_SECOND, KEY
from tests.component.hostile.scene import Scene, Setting, conclude, judge_callbacks, recover, scene
from tests.component.hostile.watch import MAY_USE
from tests.component.hostile.wire_behaviours import WIRE

NAMES: Final = frozenset(each.__name__ for each in (*BEHAVIOURS, *WIRE))
_ORDINARY: Final = "ordinary-key"
_PAUSE: Final = 0.1
"""Average seconds between two requests of an ordinary client."""
_AT_ONCE: Final = 4
_NICE: Final = 19
"""Of the peers' process: on the gateway's machine, it must not take the cores that its own work needs."""
_MAY_RISE: Final = 1.5
_MAY_ADD: Final = 0.02
"""The p99 of ordinary clients' TTFT stays within so many times, or so many seconds more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    setting: Setting
    seconds: float
    phase: float
    """Seconds of each phase: hostile and honest peers take turns."""
    connections: int = 200
    compares: bool = True
    """Whether honest peers take turns with the hostile ones, and TTFTs are compared."""
    without: frozenset[str] = frozenset()
    """Behaviours that are left out."""


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed."""

    saw: Counter[str] = field(default_factory=Counter)
    """What ordinary clients saw."""
    done: Counter[str] = field(default_factory=Counter)
    """Behaviours, and how often they were used."""
    sent: dict[str, int] = field(default_factory=dict)
    """Kind of the peers -> bytes that they sent."""
    late: dict[str, float] = field(default_factory=dict)
    """Kind of the peers -> p99 of the TTFT of ordinary clients, in seconds."""
    memory: dict[str, int] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """For the results."""
        setting = self.plan.setting
        plan = {"order": setting.order or "Aggregated", "workers": setting.workers, "seconds": self.plan.seconds}
        counts = {"behaviours": len(self.done), "hostile": self.done.total(), "saw": self.saw, "sent": self.sent}
        return {**plan, "seed": setting.seed, **counts, "late": self.late, "memory": self.memory}


async def run(plan: Plan, log: Path) -> Report:
    """Hostile peers, in turns with honest ones; then all is normal again."""
    report = Report(plan)
    async with client_scene(plan.setting, log) as found:
        rng, ends = random.Random(plan.setting.seed), time.monotonic() + plan.seconds
        times: dict[str, list[float]] = {"hostile": [], "honest": []}
        names, rate = sorted(NAMES - plan.without), float(BYTES_PER_SECOND)
        while time.monotonic() < ends:
            for kind in ("hostile", "honest") if plan.compares else ("hostile",):
                counts = await run_phase(report, found, kind, rate, names, rng.randrange(1 << 30))
                rate = counts["sent"] / plan.phase if kind == "hostile" else float(BYTES_PER_SECOND)
                times[kind] += [each.first for each in found.clients.outcomes if each.first]
                report.saw += found.clients.saw
                found.clients.outcomes.clear()
        judge_times(report, times)
        await recover(report, found)
        report.memory = {"idle": found.watch.idle, "most": found.watch.peak, "end": found.watch.gateway.memory()}
        await conclude(report, found, Violation)
    return report


@asynccontextmanager
async def client_scene(setting: Setting, log: Path) -> AsyncIterator[Scene]:
    """A scene with keys of clients; all engines are healthy."""
    lines = [f"sha256:{sha256(key.encode()).hexdigest()} {name}\n" for name, key in (("a", _ORDINARY), ("b", KEY))]
    keys = log.with_suffix(".keys")
    keys.write_text("".join(lines))
    more: dict[str, Any] = {"keys": Keys(clients=str(keys)), "limits": Limits(trusted_proxies=("127.0.0.0/8",))}
    async with scene(setting, log, hostile=False, key=_ORDINARY, **more) as found:
        yield found


async def run_phase(
    report: Report, found: Scene, kind: str, rate: float, names: Iterable[str], seed: int
) -> dict[str, Any]:
    """Peers of one kind beside ordinary clients; return the counts of the peers."""
    plan, watch, label = report.plan, found.watch, f"{kind}: {', '.join(list(names)[:3])}"
    memory, since, problems = watch.gateway.memory(), time.time(), len(watch.problems)
    before = Counter((await watch.gateway.state())["ejections"])
    arguments = (str(watch.gateway.listen), plan.connections, seed, kind, rate, *names)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.component.hostile.clients", *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None, "it is a pipe"
    os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
    try:
        assert await process.stdout.readline(), "the peers have connected"
        end = time.monotonic() + plan.phase
        await found.clients.keep_on(_AT_ONCE, lambda: time.monotonic() >= end, _PAUSE)
        counts: dict[str, Any] = json.loads((await process.communicate(b""))[0])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    judge_callbacks(report, found, since, label)
    grown = max((size for at, size in watch.samples if at >= since), default=0) - memory
    report.expect(grown <= MAY_USE, f"{label}: memory grew by {grown >> 20} MiB")
    report.failures += [f"{label}: {each.text}" for each in watch.problems[problems:]]
    for outcome in found.clients.outcomes:
        report.expect(outcome.saw == "right", f"{label}: an ordinary client saw {outcome.saw}: {outcome.detail}")
    ejected = Counter((await watch.gateway.state())["ejections"]) - before
    report.expect(not ejected, f"{label}: healthy engines were ejected: {dict(ejected)}")
    report.sent[kind] = report.sent.get(kind, 0) + counts["sent"]
    if kind == "hostile":
        report.done += Counter(counts["done"])
    return counts


def judge_times(report: Report, times: dict[str, list[float]]) -> None:
    """Ordinary clients are about as fast beside hostile peers as beside honest ones that send as many bytes."""
    report.late = {
        kind: quantiles(some, n=100, method="inclusive")[98] for kind, some in times.items() if len(some) > 1
    }
    if not report.plan.compares:
        return
    hostile, honest = report.late["hostile"], report.late["honest"]
    allowed = max(_MAY_RISE * honest, honest + _MAY_ADD)
    report.expect(
        hostile <= allowed, f"TTFT p99 {hostile * 1000:.0f} ms beside hostile peers, {honest * 1000:.0f} ms else"
    )
