"""Hostile engines among healthy ones, and what it costs the requests of healthy engines, and the gateway."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import come_to_idle, eventually
from pdx_api.names import Order, Role
from pdx_sim import SimEngine, Violation
from tests.component.hostile import answer_behaviours, framing_behaviours
from tests.component.hostile.answer_behaviours import ANSWERS
from tests.component.hostile.engines import Behaviour, HostileEngine, Page, Spell, Style
from tests.component.hostile.framing_behaviours import FRAMING
from tests.component.hostile.page_behaviours import PAGES
from tests.component.hostile.requests import Clients
from tests.component.hostile.watch import MAY_USE, Watch, watched

FATAL: Final = frozenset(framing_behaviours.FATAL | answer_behaviours.FATAL)
"""An engine all of whose answers are such must be out of service."""
TABLE: Final[dict[Page, tuple[Behaviour, ...]]] = {
    **{page: (*some, *FRAMING) for page, some in PAGES.items()},
    Page.ANSWER: (*ANSWERS, *FRAMING),
}
"""Every behaviour, by page."""
NAMES: Final = frozenset(each.__name__ for some in TABLE.values() for each in some)
_SECONDS: Final = {Style.CLIENTS: 4.0, Style.PAGES: 4.0, Style.WHOLE: 8.0}
"""A whole one lasts as long as a silent engine may stay in service: a deadline and two health checks."""
_RECOVERS_WITHIN: Final = 30.0
_HEALTHY: Final = 2
_AT_ONCE: Final = 8
_AFTER: Final = 40
"""Requests after the hostile engine behaves again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seconds: float
    seed: int
    workers: int = 1
    order: Order | None = None
    """None: aggregated engines."""
    without: frozenset[str] = frozenset()
    """Behaviours that are left out."""


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed."""

    saw: Counter[str] = field(default_factory=Counter)
    """What clients saw whose requests only healthy engines had."""
    touched: Counter[str] = field(default_factory=Counter)
    """What the others saw."""
    done: Counter[str] = field(default_factory=Counter)
    blame: dict[str, Counter[str]] = field(default_factory=dict)
    """Behaviour -> what the clients saw whose requests it had."""
    memory: dict[str, int] = field(default_factory=dict)
    recovered: float = 0.0
    """Seconds from its good behaviour until every engine was warm."""

    def line(self) -> dict[str, Any]:
        """For the results."""
        plan = {"order": self.plan.order or "Aggregated", "workers": self.plan.workers, "seconds": self.plan.seconds}
        counts = {"behaviours": len(self.done), "hostile": self.done.total(), "saw": self.saw, "touched": self.touched}
        return {**plan, "seed": self.plan.seed, **counts, "memory": self.memory, "recovered": round(self.recovered, 1)}


@dataclass
class Scene:
    """A gateway with healthy engines and one hostile engine of each role, which are honest at first."""

    engines: Engines
    hostile: list[HostileEngine]
    watch: Watch
    clients: Clients

    async def states(self) -> dict[str, str]:
        """Name of each engine -> its state at the gateway."""
        return {each["name"]: each["state"] for each in (await self.watch.gateway.state())["endpoints"]}

    async def all_warm(self) -> bool:
        """Whether the gateway selects every engine."""
        states = await self.states()
        count = len(self.engines.specs) + len(self.hostile)
        return len(states) == count and set(states.values()) == {"Warm"}

    async def run_spell(self, report: Report, hostile: HostileEngine, spell: Spell, seconds: float) -> None:
        """One engine misbehaves for some time. With fatal answers alone, it is out of service at the end."""
        label = f"{hostile.role} {spell.style} {', '.join(spell.names[:6])}{' and others' * (len(spell.names) > 6)}"
        memory, since = self.watch.gateway.memory(), time.time()
        problems, outcomes = len(self.watch.problems), len(self.clients.outcomes)
        before = hostile.done.copy()
        hostile.turn(spell)
        await asyncio.sleep(seconds)
        answers = {each.__name__ for each in spell.behaviours.get(Page.ANSWER, ())}
        state = (await self.states()).get(hostile.name)
        served = (hostile.done - before).total()
        if spell.style is Style.WHOLE and answers <= FATAL and served:
            report.expect(state != "Warm", f"{label}: it is still in service after {seconds} s")
        hostile.turn(None)
        for line in self.watch.slow(since):
            report.expect(False, f"{label}: a callback used {line['seconds'] * 1000:.0f} ms of CPU: {line['name']}")
        grown = max((size for at, size in self.watch.samples if at >= since), default=0) - memory
        report.expect(grown <= MAY_USE, f"{label}: memory grew by {grown >> 20} MiB")
        report.failures += [f"{label}: {each.text}" for each in self.watch.problems[problems:]]
        for outcome in self.clients.outcomes[outcomes:]:
            if outcome.saw != "right" and not self._touched(outcome.number):
                report.expect(False, f"{label}: a request at healthy engines: {outcome.saw}: {outcome.detail}")

    def _touched(self, number: int) -> bool:
        return any(number in each.touched for each in self.hostile)


@asynccontextmanager
async def scene(plan: Plan, log: Path) -> AsyncIterator[Scene]:
    """A scene in which all is warm."""
    order = plan.order or Order.PREFILL_FIRST
    roles = (Role.AGGREGATED,) if plan.order is None else (Role.PREFILL, Role.DECODE)
    sim = replace(BASE, jitter=0.2, max_model_len=8192)
    rng = random.Random(plan.seed)
    engines = Engines(order)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engines.close)
        watch = await stack.enter_async_context(watched(log, workers=plan.workers, debug_headers=True))
        for role in itertools.chain.from_iterable([roles] * _HEALTHY):
            await engines.add(role, sim)
        hostile = []
        for role in roles:
            engine = await stack.enter_async_context(SimEngine(replace(sim, role=role, order=order, seed=99)))
            hostile.append(await stack.enter_async_context(HostileEngine(engine, random.Random(rng.random()))))
        found = Scene(engines, hostile, watch, Clients(watch.gateway.listen, random.Random(rng.random())))
        watch.gateway.set_engines([*engines.specs.values(), *(each.spec(order) for each in hostile)])
        assert await eventually(found.all_warm, within=30.0), await found.states()
        await asyncio.sleep(0.5)
        watching = asyncio.create_task(watch.run())
        try:
            yield found
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def random_spells(plan: Plan, rng: random.Random) -> Iterator[tuple[int, Spell, float]]:
    """Whose turn it is, what it does, and for how long."""
    table = {page: [each for each in some if each.__name__ not in plan.without] for page, some in TABLE.items()}
    styles: list[Style] = []
    for turn in itertools.count(rng.randrange(2)):
        styles = styles or rng.sample(list(Style), len(Style))
        style = styles.pop()
        some = table
        if style is Style.WHOLE and rng.random() < 0.7:
            fatal = [each for each in table[Page.ANSWER] if each.__name__ in FATAL]
            some = {**table, Page.ANSWER: fatal, Page.HEALTH: [each for each in fatal if each in FRAMING]}
        yield turn, Spell(style, some), _SECONDS[style]


async def run(plan: Plan, log: Path) -> Report:
    """Hostile engines take turns, at random; then all is normal again."""
    report, rng = Report(plan), random.Random(plan.seed)
    async with scene(plan, log) as found:
        spells = random_spells(plan, rng)
        end = time.monotonic() + plan.seconds
        load = asyncio.create_task(found.clients.keep_on(_AT_ONCE, lambda: time.monotonic() >= end, 0.02))
        while time.monotonic() < end:
            turn, spell, seconds = next(spells)
            hostile = found.hostile[turn % len(found.hostile)]
            await found.run_spell(report, hostile, spell, min(seconds, max(0.1, end - time.monotonic())))
        await recover(report, found)
        await load
        await conclude(report, found)
    return report


async def recover(report: Report, found: Scene) -> None:
    """All engines behave: within 30 s, all are warm, and serve every request."""
    began, since = time.monotonic(), time.time()
    warm = await eventually(found.all_warm, within=_RECOVERS_WITHIN)
    report.recovered = time.monotonic() - began
    report.expect(warm, f"not warm 30 s after the engine behaves again: {await found.states()}")
    for _ in range(_AFTER):
        outcome = await found.clients.send()
        report.expect(outcome.saw == "right", f"after the engine behaves again: {outcome.saw}: {outcome.detail}")
    for line in found.watch.slow(since):
        report.expect(False, f"afterwards, a callback used {line['seconds'] * 1000:.0f} ms of CPU: {line['name']}")


async def conclude(report: Report, found: Scene) -> None:
    """Judge every request, and what is left of all."""
    gateway, engines = found.watch.gateway, found.engines
    await come_to_idle(report, gateway)
    for outcome in found.clients.outcomes:
        names = {name for each in found.hostile for name in each.touched.get(outcome.number, ())}
        report.expect(not outcome.foreign, f"the text of another request, after {names}: {outcome.detail}")
        allowed = outcome.saw not in ("stuck", "nothing")
        report.expect(allowed, f"{outcome.saw} after {sorted(names)}: {outcome.detail}")
        touched = any(outcome.number in each.touched for each in found.hostile)
        (report.touched if touched else report.saw)[outcome.saw] += 1
        for name in names:
            report.blame.setdefault(name, Counter())[outcome.saw] += 1
    report.done = sum((each.done for each in found.hostile), Counter())
    report.memory = {"idle": found.watch.idle, "most": found.watch.peak, "end": gateway.memory()}
    most = found.watch.peak - found.watch.idle
    report.expect(most <= MAY_USE, f"the gateway used {most >> 20} MiB more than when it was idle")
    report.states.append(await gateway.state())
    killed = [each for each in engines.all if each.counts.violations[Violation.ENGINE_KILLED.value]]
    report.expect(not killed, f"{len(killed)} healthy engines were killed by what a hostile one sent")
    free = await eventually(lambda: _free(engines.all), BASE.lease_seconds + BASE.decoder_ttl_seconds + 3.0)
    report.expect(free, f"blocks are held: {[each.state() for each in engines.all if each.counts.blocks_held_now]}")
    report.expect(await gateway.end() == 0, "the gateway ends with another code than 0")
    strange = [line for line in gateway.log.splitlines() if not line.startswith("pdx gateway: ")]
    report.expect(not strange, "the gateway's log: " + "\n".join(strange[-40:]))


async def _free(engines: Sequence[SimEngine]) -> bool:
    return not any(engine.counts.blocks_held_now for engine in engines)
