"""Warm-up: an engine is picked only after it has served once, and a P only after its KV has reached a D.

The first forward pass of an engine has its traps: a D whose very first work is decoding over KV from outside can die.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pdx_api.names import Role
from pdx_proxy.balancing.shared_load import LoadTable
from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.endpoints.endpoint import NO_SLOT, Endpoint, State, by_rank, pairing
from pdx_proxy.endpoints.events import Cause, EndpointEvent, LostHandoff, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engines import Engines
from pdx_proxy.engines.probe import hand_over, serve
from pdx_proxy.http.upstream.failures import BadAnswer, ConnectFailure, DeadlineExceeded, EngineFailure

_BODY: Final[Mapping[str, Any]] = {"prompt": "A first short prompt warms an engine up.", "max_tokens": 2}
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 2.0
_LONGEST_EJECTION: Final = 30.0
_STEADY_SECONDS: Final = 60.0
"""How long an engine must be warm until what it was left out for before is forgotten."""

Publish = Callable[[Snapshot], None]


class EndpointRegistry:
    """Owner of what is known of the endpoints: warms what is cold and publishes a snapshot at every change.

    Invariant: an endpoint has a task exactly while it wants warmth, once `start` has been called.
    """

    def __init__(
        self,
        engines: Engines,
        specs: Iterable[EndpointSpec],
        publish: Publish,
        rng: random.Random | None = None,
        table: LoadTable | None = None,
    ) -> None:
        self._engines = engines
        self._table = table
        self._endpoints = {spec.name: self._new(spec) for spec in by_rank(specs)}
        self._publish = publish
        self._random = rng or random.Random()  # noqa: S311 (spreads load)
        self._slots = asyncio.Semaphore(engines.settings.warm_ups)
        self._handshaken: frozenset[tuple[str, int, str, int]] = frozenset()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._decode_warmed = asyncio.Event()
        self._turn = 0
        self._seconds = engines.deadlines.warm_up
        self.ejections = dict.fromkeys(Cause, 0)
        """How often endpoints were left out, by cause."""

    @property
    def snapshot(self) -> Snapshot:
        """The view in force."""
        return Snapshot.of(self._endpoints.values(), self._handshaken)

    def start(self) -> None:
        """Begin to warm every endpoint."""
        self._tend(self._endpoints)

    async def stop(self) -> None:
        """End all warming."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def update(self, specs: Iterable[EndpointSpec]) -> None:
        """These are the engines now: new ones are warmed, restarted ones anew, and those that are gone forgotten."""
        found = {spec.name: spec for spec in by_rank(specs)}
        endpoints = {name: self._endpoints.get(name) for name in found}
        after = {
            name: _updated(endpoint, found[name]) if endpoint else self._new(found[name])
            for name, endpoint in endpoints.items()
        }
        changed = [name for name, endpoint in endpoints.items() if after[name] is not endpoint]
        gone = self._endpoints.keys() - found.keys()
        if not changed and not gone:
            return
        restarted = {name for name in changed if (old := endpoints[name]) and _is_another(old.spec, found[name])}
        for name in gone | restarted:
            self._cancel(name)
        if self._table is not None:
            for name in gone:
                self._table.take_back(name)
        self._endpoints = after
        self._announce()
        self._wake_prefills()
        self._tend(changed)

    def hear(self, news: EndpointEvent) -> None:
        """Take what a worker tells of an endpoint; it may be gone meanwhile."""
        endpoint = self._endpoints.get(news.name)
        if endpoint is None:
            return
        if isinstance(news, LostHandoff):
            self._put(endpoint, lost=endpoint.lost + 1)
        elif endpoint.warm_up_state is State.WARM and endpoint.generation == news.generation:
            self._eject(endpoint, news)

    def _eject(self, endpoint: Endpoint, news: Suspect) -> None:
        """Warm an endpoint anew before it is picked again.

        One that answers errors is probed after a pause, longer each time that it fails again soon. The last that can do
        its work is kept: an error is no worse than no engine.
        """
        failing = news.cause is Cause.CONSECUTIVE_ERRORS
        if failing and not self._has_substitute(endpoint):
            self.ejections[Cause.OVERRIDDEN] += 1
            return
        self.ejections[news.cause] += 1
        steady = self._engines.clock() - endpoint.warm_since > _STEADY_SECONDS
        before = 0 if steady else endpoint.ejections
        changes = {"identity": None, "reason": news.reason, "ejections": before + failing}
        self._put(endpoint, warm_up_state=State.COLD if news.cause is Cause.TIMEOUT else State.SUSPECT, **changes)
        self._tend([endpoint.name], pause=_FIRST_PAUSE * 2**before if failing else 0.0)

    def _has_substitute(self, endpoint: Endpoint) -> bool:
        others = [e for e in self._endpoints.values() if e.warm and e is not endpoint]
        if endpoint.role is Role.PREFILL:
            return any(e.role is Role.PREFILL and e.revision == endpoint.revision for e in others)
        return any(e.role is not Role.PREFILL for e in others)

    def _new(self, spec: EndpointSpec) -> Endpoint:
        return Endpoint(spec, slot=self._table.give(spec.name) if self._table else NO_SLOT)

    def _tend(self, names: Iterable[str], pause: float = 0.0) -> None:
        """Begin, after a pause, or end the warming of these endpoints, in an order that no other gateway follows."""
        names = list(names)
        self._random.shuffle(names)
        loop = asyncio.get_running_loop()
        for name in names:
            wanted = self._endpoints[name].needs_warm_up
            if wanted and name not in self._tasks:
                self._tasks[name] = loop.create_task(self._warm_until_warm(name, pause))
            elif not wanted:
                self._cancel(name)

    def _cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def _warm_until_warm(self, name: str, first_pause: float) -> None:
        if first_pause:
            await asyncio.sleep(min(first_pause, _LONGEST_EJECTION) * self._random.uniform(0.5, 1.5))
        pause = _FIRST_PAUSE
        while (endpoint := self._endpoints[name]).warm_up_state is not State.WARM:
            try:
                if endpoint.role is Role.PREFILL:
                    await self._warm_prefill(endpoint)
                else:
                    async with self._slots:
                        await serve(self._engines, endpoint, _BODY, self._seconds)
                    self._put_warm(endpoint)
            except EngineFailure as failure:
                down = isinstance(failure, ConnectFailure) and failure.endpoint == name
                # What does not listen has ended: it starts anew with all of its blocks.
                self._put(endpoint, warm_up_state=State.COLD, reason=str(failure), lost=0 if down else endpoint.lost)
                await asyncio.sleep(pause * self._random.uniform(0.5, 1.5))
                pause = min(pause * 2, _LONGEST_PAUSE)
        del self._tasks[name]

    async def _warm_prefill(self, prefill: Endpoint) -> None:
        """One hand-off to a warm D of its revision. While there is none, P is warmed alone, to be ready sooner then."""
        alone = False
        while True:
            decode_warmed = self._decode_warmed
            async with self._slots:
                decode = self._decode_for(prefill)
                if decode is not None:
                    await self._warm_pair(prefill, decode)
                    return
                if not alone:
                    await serve(self._engines, prefill, _BODY, self._seconds)
                    alone = True
                    continue
            reason = "waits for a warm decode engine of its revision"
            self._put(prefill, warm_up_state=State.WARMING, reason=reason)
            await decode_warmed.wait()

    def _decode_for(self, prefill: Endpoint) -> Endpoint | None:
        decodes = [e for e in self._endpoints.values() if e.warm and e.role is Role.DECODE]
        decodes = [d for d in decodes if d.revision == prefill.revision]
        if not decodes:
            return None
        self._turn += 1
        return decodes[(self._turn - 1) % len(decodes)]

    async def _warm_pair(self, prefill: Endpoint, decode: Endpoint) -> None:
        try:
            probe = await hand_over(self._engines, prefill, decode, {**_BODY, "max_tokens": 1}, self._seconds)
        except EngineFailure as failure:
            if failure.endpoint == decode.name and not isinstance(failure, BadAnswer | DeadlineExceeded):
                self.hear(Suspect(decode.name, decode.generation, str(failure)))
            raise
        self._handshaken |= {pairing(replace(prefill, generation=prefill.generation + 1), decode)}
        self._put_warm(prefill, identity=probe.identity)

    def _put_warm(self, endpoint: Endpoint, **changes: Any) -> None:
        since, generation = self._engines.clock(), endpoint.generation + 1
        self._put(endpoint, warm_up_state=State.WARM, generation=generation, reason=None, warm_since=since, **changes)
        if endpoint.role is Role.DECODE:
            self._wake_prefills()

    def _put(self, endpoint: Endpoint, **changes: Any) -> None:
        """Change what is known of an endpoint, unless it is gone or has restarted since `endpoint` was looked at."""
        now = self._endpoints.get(endpoint.name)
        if now is None or _is_another(endpoint.spec, now.spec):
            return
        after = replace(now, **changes)
        if after != now:
            self._endpoints[endpoint.name] = after
            self._announce()

    def _announce(self) -> None:
        starts = {(e.name, e.generation) for e in self._endpoints.values()}
        self._handshaken = frozenset(key for key in self._handshaken if {key[:2], key[2:]} <= starts)
        self._publish(self.snapshot)

    def _wake_prefills(self) -> None:
        self._decode_warmed.set()
        self._decode_warmed = asyncio.Event()


def _updated(endpoint: Endpoint, spec: EndpointSpec) -> Endpoint:
    """What is known of an engine after news of it; the same object if nothing has changed."""
    if _is_another(endpoint.spec, spec):
        return Endpoint(spec, generation=endpoint.generation, reason="has restarted", slot=endpoint.slot)
    return endpoint if endpoint.spec == spec else replace(endpoint, spec=spec)


def _is_another(old: EndpointSpec, new: EndpointSpec) -> bool:
    """Whether they are different engines, or different starts of one."""
    return replace(old, ready=new.ready, leaving=new.leaving) != new
