"""Hostile engines among healthy ones, and what it costs the requests of healthy engines, and the gateway."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.soak import frame
from pdx_api.names import Order
from pdx_sim import Violation
from tests.component.hostile import answer_behaviours, framing_behaviours
from tests.component.hostile.answer_behaviours import ANSWERS
from tests.component.hostile.engines import Behaviour, HostileEngine, Page, Spell, Style
from tests.component.hostile.framing_behaviours import FRAMING
from tests.component.hostile.page_behaviours import PAGES
from tests.component.hostile.scene import Scene, Setting, conclude, judge_callbacks, recover, scene
from tests.component.hostile.watch import MAY_USE

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
_AT_ONCE: Final = 12
_JUDGED: Final = 5
"""So many requests show that an engine fails. While all clients wait for the other hostile engine, it gets none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    setting: Setting
    seconds: float
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
    """Behaviours, and how often they were used."""
    memory: dict[str, int] = field(default_factory=dict)
    recovered: float = 0.0
    """Seconds until every engine was warm and has served."""

    def line(self) -> dict[str, Any]:
        """For the results."""
        setting = self.plan.setting
        plan = {"order": setting.order or "Aggregated", "workers": setting.workers, "seconds": self.plan.seconds}
        counts = {"behaviours": len(self.done), "hostile": self.done.total(), "saw": self.saw, "touched": self.touched}
        return {**plan, "seed": setting.seed, **counts, "memory": self.memory, "recovered": round(self.recovered, 1)}


async def run_spell(report: Report, found: Scene, hostile: HostileEngine, spell: Spell, seconds: float) -> None:
    """One engine misbehaves for some time. With fatal answers alone, it is out of service at the end."""
    watch = found.watch
    memory, since, before = watch.gateway.memory(), time.time(), hostile.done.copy()
    problems, outcomes = len(watch.problems), len(found.clients.outcomes)
    hostile.turn(spell)
    touched = len(hostile.touched)
    await asyncio.sleep(seconds)
    done = hostile.done - before
    label = f"{hostile.role} {spell.style}: {', '.join(sorted(done))}"
    judged = len(hostile.touched) - touched >= _JUDGED
    if is_fatal(spell) and seconds >= _SECONDS[Style.WHOLE] and judged:
        state = (await found.states()).get(hostile.name)
        report.expect(state != "Warm", f"{label}: it is still in service after {seconds} s")
    hostile.turn(None)
    judge_callbacks(report, found, since, label)
    grown = max((size for at, size in watch.samples if at >= since), default=0) - memory
    report.expect(grown <= MAY_USE, f"{label}: memory grew by {grown >> 20} MiB")
    report.failures += [f"{label}: {each.text}" for each in watch.problems[problems:]]
    for outcome in found.clients.outcomes[outcomes:]:
        fine = outcome.saw == "right" or found.touched(outcome.number)
        report.expect(fine, f"{label}: a request at healthy engines: {outcome.saw}: {outcome.detail}")


def is_fatal(spell: Spell) -> bool:
    """Whether no engine that does this may stay in service."""
    answers = {each.__name__ for each in spell.behaviours.get(Page.ANSWER, ())}
    return spell.style is Style.WHOLE and bool(answers) and answers <= FATAL


def random_spells(plan: Plan, rng: random.Random) -> Iterator[tuple[int, Spell, float]]:
    """Whose turn it is, what it does, and for how long."""
    table = {page: [each for each in some if each.__name__ not in plan.without] for page, some in TABLE.items()}
    fatal = [each for each in table[Page.ANSWER] if each.__name__ in FATAL]
    failing = {**table, Page.ANSWER: fatal, Page.HEALTH: [each for each in fatal if each in FRAMING]}
    styles: list[Style] = []
    for turn in itertools.count(rng.randrange(2)):
        styles = styles or rng.sample(list(Style), len(Style))
        style = styles.pop()
        fails = style is Style.WHOLE and rng.random() < 0.7
        yield turn, Spell(style, failing if fails else table), _SECONDS[style]


async def run(plan: Plan, log: Path) -> Report:
    """Hostile engines take turns, at random; then all is normal again."""
    report, rng = Report(plan), random.Random(plan.setting.seed)
    async with scene(plan.setting, log, hostile=True, debug_headers=True) as found:
        spells, end = random_spells(plan, rng), time.monotonic() + plan.seconds
        load = asyncio.create_task(found.clients.keep_on(_AT_ONCE, lambda: time.monotonic() >= end, 0.02))
        while (left := end - time.monotonic()) > 0:
            turn, spell, seconds = next(spells)
            await run_spell(report, found, found.hostile[turn % len(found.hostile)], spell, min(seconds, left))
        since = time.time()
        await recover(report, found)
        report.recovered = time.time() - since
        judge_callbacks(report, found, since, "afterwards")
        await load
        judge_outcomes(report, found)
        report.memory = {"idle": found.watch.idle, "most": found.watch.peak, "end": found.watch.gateway.memory()}
        await conclude(report, found, (Violation.ENGINE_KILLED,))
    return report


def judge_outcomes(report: Report, found: Scene) -> None:
    """Each request has an end that docs/failure-matrix.md allows, and nobody gets the text of another request."""
    for outcome in found.clients.outcomes:
        names = sorted(name for each in found.hostile for name in each.touched.get(outcome.number, ()))
        touched = found.touched(outcome.number)
        allowed = outcome.saw not in ("stuck", "nothing") if touched else outcome.saw == "right"
        report.expect(allowed, f"{outcome.saw} after {names}: {outcome.detail}")
        report.expect(not outcome.foreign, f"the text of another request, after {names}: {outcome.detail}")
        (report.touched if touched else report.saw)[outcome.saw] += 1
    report.done = sum((each.done for each in found.hostile), Counter())
    report.expect(sum(report.saw.values()) > 0, "no request was at healthy engines alone")


def setting_of(seed: int, workers: int) -> Setting:
    """A setting with an order at random, or aggregated engines."""
    return Setting(random.Random(seed).choice((Order.PREFILL_FIRST, Order.DECODE_FIRST, None)), workers, seed)
