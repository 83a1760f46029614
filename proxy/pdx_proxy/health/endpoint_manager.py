"""The manager of endpoints: whatever changes an endpoint goes through it to the registry, and it performs what follows.

Discovery, the events of workers, the watch of the engines' metrics and warm-up report to it.
"""

import random
from collections.abc import Callable, Iterable

from pdx_proxy.config.settings import EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, Names
from pdx_proxy.endpoints.events import EndpointEvent
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.health.health_checks import HealthChecks
from pdx_proxy.health.registry import Actions, EndpointRegistry
from pdx_proxy.health.warm_up import WarmUps


class EndpointManager:
    """Passes changes to the registry and performs the actions that follow: it publishes, checks and warms up.

    Invariant: from `start` on, an endpoint is being warmed up exactly while it needs a warm-up.
    """

    def __init__(
        self,
        engines: Engines,
        registry: EndpointRegistry,
        publish: Callable[[], None],
        rng: random.Random | None = None,
    ) -> None:
        """`publish` is called after each change of the registry's snapshot."""
        self._registry = registry
        self._publish = publish
        self._warm_ups = WarmUps(engines, registry, self._perform, rng)
        self._checks = HealthChecks(engines, self.on_event)

    def start(self) -> None:
        """Start to warm up every endpoint."""
        self._perform(self._registry.start())

    async def stop(self) -> None:
        """End all warm-ups and health checks."""
        await self._checks.stop()
        await self._warm_ups.stop()

    def update(self, specs: Iterable[EndpointSpec]) -> None:
        """Replace the set of engines."""
        self._perform(self._registry.update(specs))

    def on_event(self, event: EndpointEvent) -> None:
        """Receive an event from a worker."""
        self._perform(self._registry.on_event(event))

    def set_long_queue(self, endpoint: Endpoint, long_queue: bool) -> None:
        """The queue of a D is, or is no longer, too long for a push."""
        self._perform(self._registry.set_long_queue(endpoint, long_queue))

    def set_pairs(self, suspended: frozenset[Names], watched: frozenset[Names]) -> None:
        """Replace the pairs that get no hand-off because KV does not move, and those that are watched."""
        self._perform(self._registry.set_pairs(suspended, watched))

    def set_models(self, endpoint: Endpoint, page: bytes) -> None:
        """Put the models in force that an engine reports on a page."""
        self._perform(self._registry.set_models(endpoint, page))

    def _perform(self, actions: Actions) -> None:
        self._warm_ups.cancel(actions.cancel)
        if actions.publish:
            self._publish()
        if actions.check is not None:
            self._checks.start(actions.check)
        if actions.wake_prefills:
            self._warm_ups.wake_prefills()
        self._warm_ups.start(actions.start, actions.pause)
