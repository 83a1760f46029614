"""The scraper of the engines' metrics: reads each warm engine once a second, for all workers and for all uses."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from pdx_api.names import Role
from pdx_api.vllm_metrics import read_ranks
from pdx_proxy.config.settings import Address
from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.probe import fetch, page_of
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.health.reports import Report, Round
from pdx_proxy.http.routes import MODELS
from pdx_proxy.http.upstream.failures import ConnectTimeout, DeadlineExceeded, EngineFailure

PAUSE_SECONDS: Final = 1.0
"""Between two rounds, varied by a fifth so that several gateways do not read an engine at the same instant."""
GROWING_SECONDS: Final = 0.05
"""Between two rounds while requests wait for an engine that may be able to run more."""
SAMPLE_SECONDS: Final = 10.0
"""Between two samples: rounds that are compared with each other, and in which the models are read."""
ANSWER_SECONDS: Final = 1.0
"""Deadline of an engine's answer."""
SAMPLE_ANSWER_SECONDS: Final = 2.0
"""The same in a sample, and for its models."""
OLDEST_SECONDS: Final = 5.0
"""How long a report is used if no newer one arrives."""
_CONCURRENT: Final = 16
_log: Final = logging.getLogger(__name__)


class EngineScraper:
    """Owner of the last report of each endpoint."""

    def __init__(
        self,
        engines: Engines,
        snapshot: Callable[[], Snapshot],
        consume: Callable[[Round], Awaitable[None]],
        set_models: Callable[[Endpoint, bytes], None],
        hurry: Callable[[], bool],
        rng: random.Random | None = None,
    ) -> None:
        """`consume` receives every round.

        `set_models` receives the page with the models of each engine that answers clients: adapters may come and go.
        `hurry` returns whether the next round must begin soon.
        """
        self._engines = engines
        self._snapshot = snapshot
        self._consume = consume
        self._set_models = set_models
        self._hurry = hurry
        self._random = rng or random.Random()  # noqa: S311 (spreads load)
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._latest: dict[Start, Report] = {}
        self._sampled_at = engines.clock()
        self._task: asyncio.Task[None] | None = None
        self._models: asyncio.Future[list[None]] | None = None
        """Reads the models beside the rounds, which do not wait for it."""

    def start(self) -> None:
        """Start to read."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop reading."""
        for work in (self._task, self._models):
            if work is not None:
                work.cancel()
                await asyncio.wait([work])

    async def _run(self) -> None:
        while True:
            try:
                await self.scrape_all()
            except Exception:
                _log.exception("Reading the metrics of the engines failed.")
            await self._pause(PAUSE_SECONDS * self._random.uniform(0.8, 1.2))

    async def _pause(self, seconds: float) -> None:
        clock = self._engines.clock
        ends = clock() + seconds
        while (remaining := ends - clock()) > 0:
            await asyncio.sleep(min(remaining, GROWING_SECONDS))
            if self._hurry():
                return

    async def scrape_all(self) -> None:
        """Read every warm engine once."""
        clock, snapshot = self._engines.clock, self._snapshot()
        is_sample = clock() - self._sampled_at >= SAMPLE_SECONDS
        if is_sample:
            self._sampled_at = clock()
        by_address: dict[Address, list[Endpoint]] = {}
        for endpoint in snapshot.everything:
            if endpoint.warm:
                by_address.setdefault(endpoint.address, []).append(endpoint)
        if is_sample and (self._models is None or self._models.done()):
            firsts = [ranks[0] for ranks in by_address.values() if ranks[0].role is not Role.PREFILL]
            self._models = asyncio.gather(*map(self._read_models, firsts))
        seconds = SAMPLE_ANSWER_SECONDS if is_sample else ANSWER_SECONDS
        answers = await asyncio.gather(*(self._scrape(ranks, seconds) for ranks in by_address.values()))
        new = tuple(report for answer in answers for report in answer or ())
        late = tuple(tuple(r) for r, answer in zip(by_address.values(), answers, strict=True) if answer is None)
        await self._consume(Round(clock(), snapshot, new, self._update(snapshot, new), late, is_sample))

    async def _read_models(self, endpoint: Endpoint) -> None:
        async with self._slots:
            page = await page_of(self._engines, endpoint, MODELS, SAMPLE_ANSWER_SECONDS)
        try:
            self._set_models(endpoint, page)
        except Exception as error:  # a page that fails is this engine's problem
            _log.error("The models of %s cannot be used: %r", endpoint.name, error)

    async def _scrape(self, ranks: list[Endpoint], seconds: float) -> list[Report] | None:
        """Read one engine for all its ranks; return None if it does not answer in time.

        A connection that is refused or lost costs a request no time, so it is left to requests.
        """
        async with self._slots:
            try:
                page = await fetch(self._engines, ranks[0], "/metrics", seconds)
            except EngineFailure as failure:
                return None if isinstance(failure, DeadlineExceeded | ConnectTimeout) else []
            at = self._engines.clock()
        try:
            reports = read_ranks(page, [endpoint.spec.rank for endpoint in ranks]) if page else []
        except Exception as error:  # a page that fails is this engine's problem
            _log.error("The metrics of %s cannot be read: %r", ranks[0].name, error)
            return []
        return [Report(endpoint, metrics, at) for endpoint, metrics in zip(ranks, reports, strict=False)]

    def _update(self, snapshot: Snapshot, new: tuple[Report, ...]) -> tuple[Report, ...]:
        """Replace the reports of the engines that have answered. Those of the others stay for a limited time."""
        oldest = self._engines.clock() - OLDEST_SECONDS
        latest = self._latest | {report.endpoint.start: report for report in new}
        warm = {endpoint.start for endpoint in snapshot.everything if endpoint.warm}
        self._latest = {start: report for start, report in latest.items() if start in warm and report.at > oldest}
        return tuple(self._latest.values())
