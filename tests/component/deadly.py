"""Simulated engines that die when a certain word passes, and supervisors that start them again."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from enum import StrEnum
from functools import partial
from typing import Any, Final

from pdx_api.names import Role
from pdx_sim import FaultKind, SimEngine
from pdx_sim.api.server import Seen
from tests.component.harness import Shape, World

WORD: Final = "Xyzzy"


class Way(StrEnum):
    """How an engine dies."""

    RESET = "reset"
    """At once: its connections are reset without an answer."""
    CORE = "core"
    """Its core dies: it answers 500, and /health 503."""
    FIRST_500 = "first-500"
    """It answers 500, and is gone 50 ms later."""
    LATE = "late"
    """In the middle of its work."""
    AFTER_EVENT = "after-event"
    """When it has sent some events of a stream."""


class _Watched(deque[Seen]):
    """What an engine has received, which reports each request before the engine begins to work on it."""

    def __init__(self, before: deque[Seen], on_request: Callable[[Seen], None]) -> None:
        super().__init__(before, before.maxlen)
        self._on_request = on_request

    def append(self, seen: Seen) -> None:
        super().append(seen)
        self._on_request(seen)


class Mine:
    """The engines of a world in which requests with the word are deadly."""

    def __init__(self, world: World, way: Way, roles: tuple[Role, ...] = tuple(Role), restart: float = 0.5) -> None:
        self._world = world
        self._way = way
        self._restart = restart
        self._tasks: set[asyncio.Task[None]] = set()
        self.deaths: list[str] = []
        """The engines that died, in order."""
        self.least = {Role.PREFILL: len(world.prefill), Role.DECODE: len(world.decode)}
        """The least number of living engines of a role so far."""
        self._names = {engine: f"{engine.settings.role}-{number}" for number, engine in enumerate(world.engines)}
        self._dying: set[SimEngine] = set()
        for engine in world.engines:
            if engine.settings.role in roles:
                engine.seen = _Watched(engine.seen, partial(self._on_request, engine))

    def _on_request(self, engine: SimEngine, seen: Seen) -> None:
        if WORD.encode() not in seen.raw or engine in self._dying:
            return
        self._dying.add(engine)
        self.deaths.append(self._names[engine])
        for role, engines in ((Role.PREFILL, self._world.prefill), (Role.DECODE, self._world.decode)):
            self.least[role] = min(self.least[role], len(set(engines) - self._dying))
        if self._way is Way.CORE:
            engine.die()
        elif self._way is Way.FIRST_500:
            engine.faults.add(FaultKind.STATUS, status=500, count=1)
        self._start(self._die(engine))

    async def _die(self, engine: SimEngine) -> None:
        match self._way:
            case Way.FIRST_500:
                await asyncio.sleep(0.05)
            case Way.LATE:
                await asyncio.sleep(0.005)
            case Way.AFTER_EVENT:
                await asyncio.sleep(0.1)
            case Way.CORE:
                await asyncio.sleep(self._restart)
        await engine.kill()
        await asyncio.sleep(self._restart)
        await engine.restart()
        self._dying.discard(engine)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def name_of(self, engine: SimEngine) -> str:
        """Return the name of an engine in `deaths`."""
        return self._names[engine]

    async def over(self) -> None:
        """Wait until every engine runs again."""
        while self._tasks:
            await asyncio.gather(*self._tasks)


async def send_ordinary(world: World, number: int, headers: dict[str, str] | None = None, at_once: int = 8) -> None:
    """Send ordinary requests, streamed and not. All must succeed."""
    numbers = iter(range(number))

    async def client() -> None:
        for each in numbers:
            shape = Shape(stream=bool(each % 2))
            reply = await world.complete(shape, headers, prompt=f"Ordinary {each}", tokens=3)
            assert (reply.status, reply.text) == (200, shape.expected(f"Ordinary {each}", 3)), reply

    await asyncio.gather(*(client() for _ in range(at_once)))
