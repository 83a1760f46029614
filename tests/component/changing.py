"""A gateway in front of pods that a test changes, while requests run."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from pdx_api.names import Order, Role
from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.discovery.pod_watcher import SpecSink
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_sim import SimEngine
from tests.component.harness import FAST, SHAPES, Reply, Shape, World, eventually, spec_of

AT_ONCE: Final = 6
"""Clients."""
DRAINS: Final = {
    "shutdown_seconds": 5.0,
    "decode_token_seconds": 1e-3,
    "prefill_base_seconds": 0.01,
    "lease_seconds": 10.0,
}


class Pods:
    """Discovery of pods that a test changes."""

    def __init__(self) -> None:
        self.specs: dict[str, EndpointSpec] = {}
        self._sinks: list[SpecSink] = []

    async def run(self, sink: SpecSink) -> None:
        self._sinks.append(sink)
        sink(self.specs.values())
        await asyncio.Event().wait()

    def put(self, name: str, spec: EndpointSpec) -> None:
        self.specs[name] = replace(spec, pod=name)
        self.notify()

    def change(self, name: str, **changes: Any) -> None:
        self.put(name, replace(self.specs[name], **changes))

    def remove(self, name: str) -> None:
        del self.specs[name]
        self.notify()

    def notify(self) -> None:
        for each in self._sinks:
            each(list(self.specs.values()))


class Changing(World):
    """A gateway in front of changing pods. A pod is named after its role, revision and number."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.pods = Pods()
        self.engine: dict[str, SimEngine] = {}

    async def add(self, name: str, order: Order | None = None, **more: Any) -> SimEngine:
        """Start an engine and its pod; `name` is like prefill-a-0."""
        role, revision, _ = name.split("-")
        own = order or self.order
        settings = replace(FAST, **{**DRAINS, "role": Role(role), "order": own, "seed": len(self.engine), **more})
        engine = self.engine[name] = SimEngine(settings)
        await engine.start()
        (self.prefill if engine.settings.role is Role.PREFILL else self.decode).append(engine)
        self.pods.put(name, replace(spec_of(engine, own), revision=revision))
        return engine

    async def leave(self, name: str) -> None:
        """Delete a pod as a cluster does: first the deletion timestamp, then preStop, SIGTERM and the end.

        A leg that was selected before may still be on its way. Only the last D of a revision may get more legs, because
        the KV was computed for it.
        """
        self.pods.change(name, leaving=True)
        group = name.rpartition("-")[0]
        last = sum(each.startswith(group) and not spec.leaving for each, spec in self.pods.specs.items()) == 0
        await asyncio.sleep(0.2)
        engine = self.engine[name]
        legs = engine.counts.legs.total()
        await asyncio.sleep(0.1)
        assert last or engine.counts.legs.total() == legs, f"{name} received a leg while it was leaving"
        await engine.stop()
        assert last or engine.counts.legs.total() == legs, f"{name} received a leg while it was leaving"
        self.pods.remove(name)

    async def restart(self, name: str) -> None:
        """Restart a container as a cluster does after its death."""
        engine = self.engine[name]
        await engine.kill()
        self.pods.change(name, ready=False)
        await asyncio.sleep(0.05)
        await engine.restart()
        spec = self.pods.specs[name]
        self.pods.change(name, instance=f"{spec.instance}+", ready=True)

    async def all_warm(self) -> None:
        await eventually(lambda: {e.name for e in self.endpoints if e.warm} == self.pods.specs.keys(), 30.0, "all warm")

    async def all_warm_but(self, *leaving: str) -> None:
        warm = self.pods.specs.keys() - set(leaving)
        await eventually(lambda: {e.name for e in self.endpoints if e.warm} == warm, 30.0, "all others warm")

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self.gateway.registry.snapshot.everything

    def find(self, name: str) -> Endpoint:
        return next(e for e in self.endpoints if e.name == name)

    @asynccontextmanager
    async def steady_requests(self, shapes: list[Shape] = SHAPES) -> AsyncIterator[list[Reply]]:
        """Send requests of every form until the end of the block. Every answer must be complete and correct."""
        stop, replies, rng = asyncio.Event(), [], random.Random(1)

        async def client(number: int) -> None:
            count = 0
            while not stop.is_set():
                count += 1
                prompt, tokens, shape = f"{number}.{count} " + "x" * rng.randrange(400), rng.randrange(1, 20), shapes
                chosen = rng.choice(shape)
                reply = await self.complete(chosen, prompt=prompt, tokens=tokens)
                assert (reply.status, reply.text) == (200, chosen.expected(prompt, tokens)), reply
                replies.append(reply)

        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(client(number))
            try:
                yield replies
                await asyncio.sleep(0.1)
            finally:
                stop.set()


MakeChanging = Callable[..., Awaitable[Changing]]
