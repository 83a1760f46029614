"""Active health checks: whether an engine for which a request waited too long answers at all.

A request that waits too long shows nothing about its engine: it may queue there, or be large. So the control side opens
a connection of its own. An engine that answers `/health` is left alone; whether its core works is shown by its metrics
(`progress`), because vLLM answers `/health` also while its core hangs. Whether it is paused it reports at `/is_paused`.
Without requests, `idle_checks` requests the check.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.events import Cause, EndpointEvent, NotReady, Suspect
from pdx_proxy.engines.probe import answers_health, is_paused
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.upstream.failures import ConnectFailure, ConnectTimeout, EngineFailure, EngineUnready, Unready

FAILED_CHECKS: Final = 2
"""Consecutive failed checks that eject an endpoint."""
_TRIES: Final = 5
"""Checks at most. Those that this process ran late do not count."""
_LATE_SECONDS: Final = 0.5
"""A check that took this much longer than its limit ran late: this process was busy, and the answer may have waited."""
_log: Final = logging.getLogger(__name__)


def conclude(endpoint: Endpoint, failure: EngineFailure, failed: int) -> Suspect | None:
    """Return what `failed` consecutive checks show, the last of which ended with `failure`. A refusal needs no second.
    The gateway's own limits show nothing.

    Pure.
    """
    start = endpoint.start
    if failure.local:
        return None
    if isinstance(failure, ConnectFailure) and not isinstance(failure, ConnectTimeout):
        return Suspect(*start, str(failure), Cause.LOST)
    if failed < FAILED_CHECKS:
        return None
    return Suspect(*start, f"{failed} health checks failed, the last: {failure.detail}", Cause.TIMEOUT)


class HealthChecks:
    """Owner of the checks that run: one for each endpoint."""

    def __init__(self, engines: Engines, report: Callable[[EndpointEvent], None]) -> None:
        self._engines = engines
        self._report = report
        self._seconds = engines.deadlines.health_check
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, endpoint: Endpoint) -> None:
        """Check an endpoint, unless a check of it runs."""
        name = endpoint.name
        if name not in self._tasks:
            task = self._tasks[name] = asyncio.get_running_loop().create_task(self._run(endpoint))
            task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def stop(self) -> None:
        """End all checks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, endpoint: Endpoint) -> None:
        try:
            found = await self._check(endpoint)
        except Exception:
            _log.exception("The health check of %s failed.", endpoint.name)
            return
        if found is not None:
            self._report(found)

    async def _check(self, endpoint: Endpoint) -> Suspect | NotReady | None:
        failed = 0
        clock = self._engines.clock
        for _ in range(_TRIES):
            began = clock()
            try:
                await answers_health(self._engines, endpoint, self._seconds)
                paused = await is_paused(self._engines, endpoint)
                return NotReady(*endpoint.start, Unready.PAUSED.value) if paused else None
            except EngineUnready as failure:  # before 0.33, vLLM's /health is 503 while it scales
                return NotReady(*endpoint.start, failure.why.value, failure.why is Unready.RETIRED)
            except EngineFailure as failure:
                failed += not failure.local and clock() - began < self._seconds + _LATE_SECONDS
                suspect = conclude(endpoint, failure, failed)
            if suspect is not None:
                return suspect
        return None
