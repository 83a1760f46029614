"""The scene of a campaign: a watched gateway, healthy engines, and a hostile engine of each role if it has any."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import come_to_idle, eventually
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address
from pdx_sim import SimEngine, Violation
from tests.component.hostile.engines import HostileEngine, as_vllm
from tests.component.hostile.requests import Clients
from tests.component.hostile.watch import MAY_USE, Watch, watched

_HEALTHY: Final = 2
"""Engines of each role."""
_BEFORE: Final = 40
"""Requests before the gateway counts as idle."""
_RECOVERS_WITHIN: Final = 30.0
_AFTER: Final = 40
"""Requests when all is over."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a scene is made of."""

    order: Order | None
    """None: aggregated engines."""
    workers: int
    seed: int


@dataclass
class Scene:
    """All engines are honest at first, and warm."""

    engines: Engines
    hostile: list[HostileEngine]
    watch: Watch
    clients: Clients
    quiet: tuple[int, int] = (0, 0)
    """Files and tasks of the gateway before the attack."""

    async def states(self) -> dict[str, str]:
        """Name of each engine -> its state at the gateway."""
        try:
            state = await self.watch.gateway.state()
        except (OSError, HTTPException, ValueError) as error:
            self.watch.note(f"/pdx/state: {error!r}")
            return {}
        return {each["name"]: each["state"] for each in state["endpoints"]}

    async def all_warm(self) -> bool:
        """Whether the gateway selects every engine."""
        states = await self.states()
        count = len(self.engines.specs) + len(self.hostile)
        return len(states) == count and set(states.values()) == {"Warm"}

    def touched(self, number: int) -> bool:
        """Whether a hostile engine had this request."""
        return any(number in each.touched for each in self.hostile)

    @property
    def sims(self) -> list[SimEngine]:
        """Those of hostile engines too."""
        return [*self.engines.all, *(each.engine for each in self.hostile)]

    async def free(self) -> bool:
        """Whether no engine holds KV."""
        return not any(engine.counts.blocks_held_now for engine in self.sims)


@asynccontextmanager
async def scene(setting: Setting, log: Path, *, hostile: bool, key: str = "", **settings: Any) -> AsyncIterator[Scene]:
    """A scene in which all is warm, and watched."""
    order = setting.order or Order.PREFILL_FIRST
    roles = (Role.AGGREGATED,) if setting.order is None else (Role.PREFILL, Role.DECODE)
    sim = replace(BASE, jitter=0.2, max_model_len=8192)
    rng = random.Random(setting.seed)
    async with AsyncExitStack() as stack:
        engines = Engines(order)
        stack.push_async_callback(engines.close)
        watch = await stack.enter_async_context(watched(log, workers=setting.workers, **settings))
        for role in itertools.chain.from_iterable([roles] * _HEALTHY):
            await engines.add(role, sim)
        for engine in engines.all:
            engine.seen = deque(maxlen=0)  # the tally of a campaign reads the prompts of ordinary requests only
        fronts = []
        for role in roles if hostile else ():
            engine = await stack.enter_async_context(SimEngine(replace(sim, role=role, order=order, seed=99)))
            fronts.append(await stack.enter_async_context(HostileEngine(engine, random.Random(rng.random()))))
        found = Scene(engines, fronts, watch, Clients(watch.gateway.listen, random.Random(rng.random()), key))
        watch.key = key
        specs = list(engines.specs.values())
        for name, engine in () if hostile else engines.live.items():
            front = await stack.enter_async_context(HostileEngine(engine, rng, honest=as_vllm))
            specs.remove(engines.specs[name])
            specs.append(replace(engines.specs[name], address=Address("127.0.0.1", front.port)))
        watch.gateway.set_engines([*specs, *(each.spec(order) for each in fronts)])
        assert await eventually(found.all_warm, within=30.0), await found.states()
        await found.clients.burst(_BEFORE)
        found.quiet = await _quiet(found)
        watch.idle = watch.gateway.memory()
        watch.start()
        try:
            yield found
        finally:
            await watch.stop()


async def _quiet(found: Scene) -> tuple[int, int]:
    """Files and tasks once idle connections are closed."""
    await asyncio.sleep(1.0)
    return found.watch.gateway.files(), await found.watch.gateway.tasks()


async def recover(report: frame.Report[Any], found: Scene) -> None:
    """All behave: within 30 s, every engine is warm, and every request is served."""
    warm = await eventually(found.all_warm, within=_RECOVERS_WITHIN)
    report.expect(warm, f"not warm {_RECOVERS_WITHIN} s after all behave again: {await found.states()}")
    for outcome in await found.clients.burst(_AFTER):
        report.expect(outcome.saw == "right", f"after all behave again: {outcome.saw}: {outcome.detail}")


def judge_callbacks(report: frame.Report[Any], found: Scene, since: float, label: str) -> None:
    """No callback used too much CPU time since then."""
    for line in found.watch.slow(since):
        report.expect(False, f"{label}: a callback used {line['seconds'] * 1000:.0f} ms of CPU: {line['name']}")


async def conclude(report: frame.Report[Any], found: Scene, violations: Iterable[Violation]) -> None:
    """Nothing is left of it: no request, file, task, memory or KV; the engines were asked for nothing absurd."""
    gateway = found.watch.gateway
    await come_to_idle(report, gateway)
    most = found.watch.peak - found.watch.idle
    report.expect(most <= MAY_USE, f"the gateway used {most >> 20} MiB more than when it was idle")
    free = await eventually(found.free, BASE.lease_seconds + BASE.decoder_ttl_seconds + 3.0)
    report.expect(free, f"blocks are held: {[each.state() for each in found.sims if each.counts.blocks_held_now]}")
    after = await _quiet(found)
    for _ in range(20):
        if after[0] > found.quiet[0] or after[1] > found.quiet[1]:
            after = await _quiet(found)
    report.expect(after[1] <= found.quiet[1], f"tasks were {found.quiet[1]}, are {after[1]}")
    report.expect(after[0] <= found.quiet[0], f"open files were {found.quiet[0]}, are {after[0]}")
    report.states.append(await gateway.state())
    internal = report.state["outcomes"]["internal"]
    report.expect(not internal, f"{internal} requests failed by an error of the gateway itself")
    for violation in violations:
        count = sum(each.counts.violations[violation.value] for each in found.engines.all)
        report.expect(not count, f"healthy engines saw {violation.value}: {count}")
    await found.watch.stop()
    report.expect(await gateway.end() == 0, "the gateway ends with another code than 0")
    strange = [line for line in gateway.log.splitlines() if not line.startswith("pdx gateway: ")]
    report.expect(not strange, "the gateway's log: " + "\n".join(strange[-40:]))
