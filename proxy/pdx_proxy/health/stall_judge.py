"""Asks engines without progress whether they are paused, and lets them leave service."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.events import EndpointEvent, NotReady, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.probe import is_paused
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.health.progress import StallDetector
from pdx_proxy.health.reports import Round
from pdx_proxy.http.upstream.failures import Unready

_log: Final = logging.getLogger(__name__)


class StallJudge:
    """Owner of the search for engines without progress. An engine that does not answer delays nothing else."""

    def __init__(
        self,
        engines: Engines,
        snapshot: Callable[[], Snapshot],
        on_event: Callable[[EndpointEvent], None],
        limit: float,
    ) -> None:
        """`limit`: seconds that requests may run without progress; 0: forever."""
        self._engines = engines
        self._snapshot = snapshot
        self._on_event = on_event
        self._detector = StallDetector(limit)
        self._answers: asyncio.Future[list[None]] | None = None

    def update(self, scraped: Round) -> None:
        """Use one more round of metrics. While engines are still asked, no others are."""
        stalls = self._detector.update(scraped)
        if self._answers is not None and not self._answers.done():
            return
        suspects = {(suspect.name, suspect.generation): suspect for suspect in stalls.suspects}
        endpoints = {endpoint.start: endpoint for endpoint in self._snapshot().everything}
        questions = [
            self._ask(endpoints[start], suspects.get(start), self._detector.since(start))
            for start in (*suspects, *stalls.maybe_paused)
            if start in endpoints
        ]
        if questions:
            self._answers = asyncio.gather(*questions)

    async def stop(self) -> None:
        """Ask no further."""
        if self._answers is not None:
            self._answers.cancel()
            await asyncio.gather(self._answers, return_exceptions=True)

    async def _ask(self, endpoint: Endpoint, suspect: Suspect | None, since: float | None) -> None:
        """Let the engine leave service if it is paused, or if it is suspect and its progress is still as it was."""
        start, paused = endpoint.start, False
        try:
            paused = await is_paused(self._engines, endpoint)
        except Exception:
            _log.exception("The question whether %s is paused failed.", endpoint.name)
        try:
            if paused:
                self._on_event(NotReady(*start, Unready.PAUSED.value))
            elif suspect is not None and self._detector.since(start) == since:
                self._on_event(suspect)
        except Exception:
            _log.exception("Taking %s out of service failed.", endpoint.name)
