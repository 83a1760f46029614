"""Random faults against one gateway, and the invariants of client, gateway and engines afterwards."""

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.soak.clients import Saw
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import Report, come_to_idle, conclude, each_role, eventually, setup, warm
from benchmarks.soak.manners import some_client, write_rubbish
from benchmarks.soak.program import GatewayProcess
from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Retries
from pdx_proxy.config.settings import Deadlines, Settings
from pdx_sim import FaultKind, Violation

DEADLINES: Final = Deadlines(
    connect_seconds=0.5,
    prefill_seconds=1.0,
    handoff_seconds=1.0,
    first_event_seconds=1.5,
    idle_seconds=1.5,
    total_seconds=15.0,
    settle=1.0,
    nearly_done=0.1,
    warm_up=1.0,
)
_MOST: Final = {Role.PREFILL: 3, Role.DECODE: 3}
_LEAST: Final = 2
_BACK_OFF: Final = 0.2
"""Average seconds until a client that was shed comes again."""
_P_ANSWER_LOST: Final = (
    FaultKind.LOSE_ANSWER,
    FaultKind.HANG_AFTER_HEAD,
    FaultKind.DIE_AFTER_HEAD,
    FaultKind.DIE_AFTER_EVENTS,
    FaultKind.DIE_IN_EVENT,
    FaultKind.GARBAGE_JSON,
    FaultKind.NO_PARAMS,
    FaultKind.ERROR_EVENT,
)
"""Faults of a P that has finished: the gateway cannot name the blocks, so they wait for the end of their lease."""
_D_LATE: Final = (FaultKind.HANG_BEFORE_HEAD, FaultKind.HANG_AFTER_HEAD, FaultKind.SLOW)
"""Faults of a D that is closed before its engine has received the leg, or too late."""
_D_ANSWER_LOST: Final = (FaultKind.LOSE_ANSWER, FaultKind.DIE_BEFORE_HEAD)
"""Faults of a D that look like a connection that was idle for too long: the leg is sent once more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One campaign."""

    order: Order
    seconds: float
    seed: int
    workers: int = 1
    at_once: int = 32
    """Clients at a time."""
    fault_seconds: float = 0.2
    """Average time between two faults."""


@dataclass
class Ledger(Report[Plan]):
    """Observations of clients, gateway and engines."""

    saw: Counter[str] = field(default_factory=Counter)
    """What clients saw, for the requests that the gateway counts."""
    chance: int = 0
    """Requests that the gateway may or may not count: their clients left."""
    uncounted: int = 0
    wrong: list[str] = field(default_factory=list)
    untouched: set[int] = field(default_factory=set)
    """Requests that no engine may have seen."""
    answered: set[int] = field(default_factory=set)
    """Requests that an engine must have seen."""
    memory: dict[str, int] = field(default_factory=dict)
    """Resident bytes by moment."""
    found: dict[str, Any] = field(default_factory=dict)
    """Further counts for the results."""

    def line(self) -> dict[str, Any]:
        """For the results."""
        plan = {"order": self.plan.order, "workers": self.plan.workers, "seconds": self.plan.seconds}
        details = {"seed": self.plan.seed, "outcomes": self.state["outcomes"], "memory": self.memory, "saw": self.saw}
        return {**plan, **details, **self.found}


async def run(plan: Plan, log: Path) -> Ledger:
    """Run the whole campaign."""
    rng = random.Random(plan.seed)
    ledger = Ledger(plan)
    engines = Engines(plan.order)
    settings = Settings(
        workers=plan.workers, deadlines=DEADLINES, idle_seconds=0.5, shutdown_seconds=10.0, gone_seconds=3.0
    )
    async with setup(engines, each_role(BASE, _LEAST), settings, log) as [gateway]:
        quiet = await _quiet(gateway)
        await _attack(plan, ledger, gateway, engines, rng)
        await _come_to_rest(ledger, gateway, engines, quiet)
        await conclude(ledger, [gateway])
    _check_clients(ledger)
    _check_engines(ledger, engines)
    return ledger


async def _attack(plan: Plan, ledger: Ledger, gateway: GatewayProcess, engines: Engines, rng: random.Random) -> None:
    end = time.monotonic() + plan.seconds
    faults = asyncio.create_task(engines.cause_faults(rng, plan.fault_seconds, _MOST))
    numbers = iter(range(1, 1 << 62))

    async def client() -> None:
        while time.monotonic() < end:
            number = next(numbers)
            manner, work = some_client(gateway.listen, number, rng)
            verdict = await work
            if verdict.saw in (Saw.WRONG, Saw.STUCK):
                ledger.wrong.append(f"{number} {verdict}"[:2000])
            if verdict.counted:
                ledger.saw[verdict.saw] += 1
            elif verdict.counted is None:
                ledger.chance += 1
            else:
                ledger.uncounted += 1
            if verdict.saw is Saw.SHED:
                await asyncio.sleep(rng.uniform(0.0, 2 * _BACK_OFF))
            if manner is write_rubbish:
                ledger.untouched.add(number)
            elif verdict.saw is Saw.TEXT:
                ledger.answered.add(number)

    async def weigh() -> None:
        await asyncio.sleep(min(300.0, plan.seconds / 2))
        ledger.memory["early"] = gateway.memory()

    await asyncio.gather(weigh(), *(client() for _ in range(plan.at_once)))
    ledger.memory["end"] = gateway.memory()
    faults.cancel()
    with suppress(asyncio.CancelledError):
        await faults
    ledger.found["requests"] = next(numbers) - 1


async def _come_to_rest(ledger: Ledger, gateway: GatewayProcess, engines: Engines, quiet: tuple[int, int]) -> None:
    """Everything that has begun ends, and nothing is left of it."""
    await engines.settle_down()
    await come_to_idle(ledger, gateway)
    await warm(gateway, engines)
    within = BASE.lease_seconds + BASE.decoder_ttl_seconds + 3.0
    await eventually(lambda: _all_free(engines), within)
    files, tasks = quiet
    files += max(0, len(engines.specs) - 2 * _LEAST)  # the gateway keeps one connection to poll each engine's load
    after: tuple[int, int] = (0, 0)
    for _ in range(60):
        after = await _quiet(gateway)
        if after[0] <= files and after[1] <= tasks:
            break
        await asyncio.sleep(0.1)
    ledger.found["files"], ledger.found["tasks"] = [files, after[0]], [tasks, after[1]]
    ledger.expect(after[0] <= files, f"files open allowed: {files}, after: {after[0]}")
    ledger.expect(after[1] <= tasks, f"tasks before: {tasks}, after: {after[1]}")


async def _quiet(gateway: GatewayProcess) -> tuple[int, int]:
    """Files and tasks once idle connections are closed."""
    await asyncio.sleep(0.8)
    return gateway.files(), await gateway.tasks()


async def _all_free(engines: Engines) -> bool:
    return not any(engine.counts.blocks_held_now for engine in engines.all)


def _check_clients(ledger: Ledger) -> None:
    """Every request has one outcome, and its client saw that outcome."""
    saw, outcomes = ledger.saw, dict(ledger.state["outcomes"])
    ledger.expect(not ledger.wrong, "wrong: " + "\n".join(ledger.wrong[:5]))
    ledger.expect(
        saw[Saw.NOTHING] <= outcomes["broken"] + outcomes["idle"], f"{saw[Saw.NOTHING]} clients received nothing"
    )
    ledger.expect(not outcomes["internal"], f"{outcomes['internal']} requests failed by an error of the gateway itself")
    left = outcomes.pop("client_left")
    expired = outcomes.pop("expired")  # before an answer or amid it
    ledger.expect(left <= ledger.chance, f"client_left {left}, but only {ledger.chance} clients left")
    kinds_of = {
        "answered": (Saw.TEXT, Saw.CUT_SHORT, Saw.GARBLED, Saw.BROKEN, Saw.NOTHING),
        "refused": (Saw.REFUSED,),
        "failed": (Saw.SHED, Saw.FAILED),
    }
    counted: Counter[str] = Counter()
    for outcome, count in outcomes.items():
        kind = "answered" if outcome in ("split", "whole", "broken", "idle") else "failed"
        counted["refused" if outcome.startswith("refused") else kind] += count
    gaps = {kind: counted[kind] - sum(saw[each] for each in kinds) for kind, kinds in kinds_of.items()}
    ledger.found["unseen"] = gaps | {"client_left": left, "left": ledger.chance}
    text = f"clients saw {dict(saw)} and {ledger.chance} left; the gateway counts {ledger.state['outcomes']}"
    ledger.expect(all(gap >= -expired for gap in gaps.values()), text)
    ledger.expect(0 <= sum(gaps.values()) + expired <= ledger.chance - left, text)
    ledger.expect(saw[Saw.TEXT] > sum(saw.values()) / 3, f"too few were answered to judge by: {dict(saw)}")


def _check_engines(ledger: Ledger, engines: Engines) -> None:
    """Engines received what the gateway reports, no block is missing, and nothing broke the protocol."""
    found = ledger.found
    violations = engines.violations
    again = violations.pop(Violation.READ_TWICE, 0) + violations.pop(Violation.ID_REUSED, 0)
    lost = engines.struck(Role.DECODE, _D_ANSWER_LOST)
    ledger.expect(again <= lost, f"{again} hand-offs were used twice, and only {lost} answers lost")
    late = engines.struck(Role.PREFILL, (FaultKind.HANG_AFTER_HEAD, FaultKind.SLOW))
    ledger.expect(violations.pop(Violation.READ_LATE, 0) <= late, "blocks were read after their lease")
    ledger.expect(not violations, f"violations: {dict(violations)}")
    touched = ledger.untouched & engines.legs.keys()
    ledger.expect(not touched, f"engines have seen rubbish: {sorted(touched)[:10]}")
    missing = ledger.answered - engines.legs.keys()
    ledger.expect(not missing, f"answered without an engine: {sorted(missing)[:10]}")
    names = ("prefills_finished", "pulled", "pushed", "released", "expired", "pinned_lost", "push_failures")
    sums = {name: engines.count(Role.PREFILL, name) for name in names}
    held = sum(engine.counts.blocks_held_now for engine in engines.all)
    ledger.expect(held == 0, f"blocks are held: {[e.state() for e in engines.all if e.counts.blocks_held_now]}")
    gone = sum(sums[name] for name in ("pulled", "pushed", "released", "expired", "pinned_lost"))
    ledger.expect(sums["prefills_finished"] == gone, f"finished prefills do not add up: {sums}")
    most_decode = max((legs.decode + legs.plain for legs in engines.legs.values()), default=0)
    most_prefill = max((legs.prefill for legs in engines.legs.values()), default=0)
    most = 2 * Retries.attempts, Retries.attempts + 2
    ledger.expect(
        most_prefill <= most[0] and most_decode <= most[1], f"legs of one request: {most_prefill, most_decode}"
    )
    struck = engines.struck(Role.PREFILL, _P_ANSWER_LOST), engines.struck(Role.DECODE, _D_LATE)
    late = ledger.state["retries"].get("deadline", 0) + ledger.state["settlements"]["lease"]
    explained = sum(struck) + late + engines.done["kill"] + engines.done["leave"] + sums["push_failures"]
    found["explained"] = explained
    text = f"{sums['expired']} leases ran out, {explained} are explained: {sums}, struck {struck}, {dict(engines.done)}"
    ledger.expect(sums["expired"] <= explained + sums["prefills_finished"] // 100, text)
    lost = engines.count(Role.DECODE, "decode_blocks_lost")
    ledger.expect(not lost or ledger.plan.order is not Order.PREFILL_FIRST, f"a D that pulls has lost {lost} blocks")
    found |= sums | {"decode_blocks_lost": lost}
    found |= {"legs": [most_prefill, most_decode], "done": dict(engines.done)}
    found["faults"] = sum(sum(engine.counts.faults.values()) for engine in engines.all)
