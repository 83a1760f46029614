"""Simulated engines with pods, and their faults, chosen by a seeded generator."""

import asyncio
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_sim import FaultKind, Leg, SimEngine, SimSettings
from pdx_sim.api.server import Seen
from pdx_sim.engine import ListenError

BASE: Final = SimSettings(
    prefill_base_seconds=0.01,
    prefill_token_seconds=2e-5,
    decode_token_seconds=2e-3,
    transfer_seconds=0.002,
    jitter=0.5,
    prefill_slots=8,
    lease_seconds=3.5,
    decoder_ttl_seconds=3.0,
    side_channel_timeout=1.0,
    shutdown_seconds=2.0,
)
"""Fast enough for hundreds of requests a second on a part of one core."""
_NUMBER: Final = re.compile(r"request (\d+)\b")
_STATUSES: Final = (400, 500, 502, 503)
_FAULTS: Final[Mapping[FaultKind, int]] = {
    FaultKind.REFUSE: 1,
    FaultKind.STATUS: 4,
    FaultKind.HANG_BEFORE_HEAD: 2,
    FaultKind.HANG_AFTER_HEAD: 2,
    FaultKind.DIE_BEFORE_HEAD: 3,
    FaultKind.LOSE_ANSWER: 2,
    FaultKind.DIE_AFTER_HEAD: 2,
    FaultKind.DIE_AFTER_EVENTS: 3,
    FaultKind.DIE_IN_EVENT: 2,
    FaultKind.GARBAGE_BYTES: 2,
    FaultKind.GARBAGE_JSON: 2,
    FaultKind.NO_PARAMS: 1,
    FaultKind.ERROR_EVENT: 3,
    FaultKind.ABORT: 2,
    FaultKind.SLOW: 4,
}
"""Kind -> how often it is chosen, relative to the others."""


@dataclass
class Legs:
    """The legs that engines received for one request."""

    prefill: int = 0
    decode: int = 0
    plain: int = 0


class Tally(deque[Seen]):
    """Counts every generation request that reaches an engine by the client's request it serves; keeps none."""

    def __init__(self, legs: dict[int, Legs]) -> None:
        super().__init__(maxlen=0)
        self._legs = legs
        self.total = 0

    def append(self, seen: Seen, /) -> None:
        """Count one."""
        self.total += 1
        number = _NUMBER.search(_prompt_of(seen.body))
        if number is None or (seen.body.get("max_tokens") == 1 and seen.leg is Leg.DECODE):
            return  # a warm-up or a settlement
        legs = self._legs.setdefault(int(number[1]), Legs())
        setattr(legs, seen.leg.value, getattr(legs, seen.leg.value) + 1)


def _prompt_of(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    return str(messages[0].get("content")) if messages else str(body.get("prompt"))


@dataclass
class Engines:
    """The engines of one campaign. Every change calls `on_change` with all pods."""

    order: Order
    known: bool = False
    """Whether their pods name how many requests they run at a time."""
    on_change: Callable[[Iterable[EndpointSpec]], None] = lambda _specs: None
    live: dict[str, SimEngine] = field(default_factory=dict)
    gone: list[SimEngine] = field(default_factory=list)
    specs: dict[str, EndpointSpec] = field(default_factory=dict)
    legs: dict[int, Legs] = field(default_factory=dict)
    """By the number of the client's request."""
    done: Counter[str] = field(default_factory=Counter)
    """Actions on engines, by name."""
    _last_number: int = 0
    _busy: set[str] = field(default_factory=set)

    @property
    def all(self) -> list[SimEngine]:
        """Those that have left included."""
        return [*self.live.values(), *self.gone]

    def of(self, role: Role) -> list[SimEngine]:
        """All of a role."""
        return [engine for engine in self.all if engine.settings.role is role]

    def count(self, role: Role, name: str) -> int:
        """The sum of one of their counts."""
        return sum(getattr(engine.counts, name) for engine in self.of(role))

    def struck(self, role: Role, kinds: Iterable[FaultKind]) -> int:
        """Faults of these kinds that have fired at engines of a role."""
        return sum(engine.counts.faults[kind.value] for kind in kinds for engine in self.of(role))

    @property
    def violations(self) -> Counter[str]:
        """How often each rule of an engine was broken."""
        return sum((Counter(engine.counts.violations) for engine in self.all), Counter())

    async def add(self, role: Role, sim: SimSettings = BASE) -> None:
        """A new engine and its pod."""
        self._last_number += 1
        name = f"{role}-{self._last_number}"
        engine = SimEngine(replace(sim, role=role, order=self.order, seed=self._last_number))
        engine.seen = Tally(self.legs)
        self.live[name] = engine
        self._busy.add(name)
        await engine.start()
        self._busy.discard(name)
        self._put(self._spec_of(name))

    async def leave(self, name: str) -> None:
        """Delete a pod: it reports that at once, finishes what runs, and is gone."""
        self._busy.add(name)
        self._put(replace(self.specs[name], leaving=True))
        await asyncio.sleep(0.2)
        engine = self.live[name]
        engine.faults.clear()
        await engine.stop()
        del self.specs[name]
        self.on_change(self.specs.values())
        self.gone.append(self.live.pop(name))
        self._busy.discard(name)

    async def kill(self, name: str, seconds: float, reported: bool) -> None:
        """Kill the process and restart it later. With `reported`, the pod is not Ready meanwhile."""
        self._busy.add(name)
        engine = self.live[name]
        engine.faults.clear()
        await engine.kill()
        if reported:
            self._put(replace(self.specs[name], ready=False))
        await asyncio.sleep(seconds)
        if await self._revive(name) and reported:
            self._put(replace(self.specs[name], ready=True, instance=f"{self.specs[name].instance}+"))
        self._busy.discard(name)

    async def _revive(self, name: str) -> bool:
        """Restart a dead engine; if another process has taken its port, start a new engine instead."""
        try:
            await self.live[name].restart()
        except ListenError:
            lost = self.live.pop(name)
            self.gone.append(lost)
            self.specs.pop(name, None)
            await self.add(lost.settings.role)
            return False
        return True

    def spoil(self, name: str, rng: random.Random) -> None:
        """Give an engine a fault, for legs of its own role or for all, unless it has one already."""
        engine = self.live[name]
        if engine.faults.active:
            return
        kind = rng.choices(list(_FAULTS), list(_FAULTS.values()))[0]
        own = Leg.PREFILL if engine.settings.role is Role.PREFILL else Leg.DECODE
        engine.faults.add(
            kind,
            count=rng.choice((1, 1, 1, 2, 4)),
            leg=rng.choice((own, own, None)),
            status=rng.choice(_STATUSES),
            seconds=rng.uniform(0.05, 0.6 if kind is FaultKind.REFUSE else 2.5),
            events=rng.choice((0, 0, 1, 2, 5)),
            factor=rng.uniform(2.0, 12.0),
        )

    async def cause_faults(self, rng: random.Random, every: float, most: Mapping[Role, int]) -> None:
        """Cause a fault every `every` seconds on average, until cancelled; a role never exceeds `most` engines."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(rng.expovariate(1 / every))
                names = [name for name in self.live if name not in self._busy]
                if not names:
                    continue
                name = rng.choice(names)
                role = self.live[name].settings.role
                deed = rng.choices(("spoil", "kill", "leave", "add", "calm"), (70, 8, 4, 5, 5))[0]
                peers = sum(engine.settings.role is role for engine in self.live.values())
                if (deed == "leave" and peers < most[role]) or (deed == "add" and peers >= most[role]):
                    deed = "spoil"
                self.done[deed] += 1
                match deed:
                    case "spoil":
                        self.spoil(name, rng)
                    case "kill":
                        group.create_task(self.kill(name, rng.uniform(0.0, 1.0), rng.random() < 0.5))
                    case "leave":
                        group.create_task(self.leave(name))
                    case "add":
                        group.create_task(self.add(role))
                    case "calm":
                        self.live[name].faults.clear()

    def calm(self) -> None:
        """Remove all faults."""
        for engine in self.live.values():
            engine.faults.clear()

    async def settle_down(self) -> None:
        """Repair what a cancelled `cause_faults` has left half done."""
        self.calm()
        for name, engine in list(self.live.items()):
            if engine.draining or not engine.is_listening:
                await engine.kill()
                if not await self._revive(name):
                    continue
            spec = self.specs.get(name) or self._spec_of(name)
            self.specs[name] = replace(spec, ready=True, leaving=False, instance=f"{spec.instance}.")
        for role in (Role.PREFILL, Role.DECODE):
            if not any(engine.settings.role is role for engine in self.live.values()):
                await self.add(role)
        self._busy.clear()
        self.on_change(self.specs.values())

    async def close(self) -> None:
        """End all."""
        for engine in self.live.values():
            engine.faults.clear()
            await engine.stop()

    def _spec_of(self, name: str) -> EndpointSpec:
        engine = self.live[name]
        address = Address("127.0.0.1", engine.port)
        settings = engine.settings
        return EndpointSpec(
            address,
            settings.role,
            order=self.order,
            pod=name,
            instance="1",
            connector=settings.connector,
            sequences=settings.max_running if self.known else 0,
        )

    def _put(self, spec: EndpointSpec) -> None:
        self.specs[spec.pod] = spec
        self.on_change(self.specs.values())
