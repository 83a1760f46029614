"""Health checks of engines that have no work, and whose metrics do not arrive in time.

An engine that has no work answers at once. If it does not, a health check follows, because without requests nothing
else shows that it hangs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from pdx_proxy.config.settings import Address
from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.endpoints.events import EndpointEvent, HealthCheckRequest
from pdx_proxy.health.reports import Round

LATE_ROUNDS: Final = 3
"""Consecutive rounds without an answer in time after which an engine without work gets a health check."""
_PASSES: Final = 10
"""Passes of the event loop, more than a health check needs."""
_PASSES_SECONDS: Final = 0.5
"""The longest time for these passes in which a health check has time to spare."""


class IdleChecks:
    """Requests a health check of each engine that is silent without work."""

    def __init__(
        self,
        clock: Callable[[], float],
        legs: Callable[[], Awaitable[Mapping[str, int]]],
        report: Callable[[EndpointEvent], None],
    ) -> None:
        self._clock = clock
        self._legs = legs
        """Returns the legs of all workers by name of the endpoint."""
        self._report = report
        self._idle: dict[Start, bool] = {}
        """Whether an endpoint had no work by its last report, however old that is."""
        self._late: dict[Address, int] = {}
        """Consecutive rounds in which an engine did not answer in time."""

    async def update(self, scraped: Round) -> None:
        """Evaluate a round, and request the checks that follow from it."""
        silent = self._silent(scraped)
        if not silent or not await self._has_time():
            return
        legs = await self._legs()
        for ranks in silent:
            if not any(legs.get(endpoint.name) for endpoint in ranks):
                for endpoint in ranks:
                    self._report(HealthCheckRequest(*endpoint.start))

    def _silent(self, scraped: Round) -> list[tuple[Endpoint, ...]]:
        """Return the engines that reported no work, and have been late for too many rounds."""
        warm = scraped.warm
        self._idle = {start: idle for start, idle in self._idle.items() if start in warm}
        for report in scraped.new:
            running, waiting = report.metrics.running, report.metrics.waiting
            if running is not None and waiting is not None:
                self._idle[report.endpoint.start] = not (running or waiting)
        self._late = {ranks[0].address: self._late.get(ranks[0].address, 0) + 1 for ranks in scraped.late}
        return [
            ranks
            for ranks in scraped.late
            if self._late[ranks[0].address] >= LATE_ROUNDS and all(self._idle.get(e.start) for e in ranks)
        ]

    async def _has_time(self) -> bool:
        """Whether this process has time for a health check. If it is overloaded, every engine seems to be late."""
        began = self._clock()
        for _ in range(_PASSES):
            await asyncio.sleep(0)
        return self._clock() - began < _PASSES_SECONDS
