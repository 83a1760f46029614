"""Polls the engines' own load, once for all workers: for the limits of legs, and for the policy LeastLoad."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from pdx_api.names import Role
from pdx_proxy.balancing.engine_limits import EngineLimit, LimitEstimator, Work
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.config.settings import Address
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engine_metrics import read_load, read_sample
from pdx_proxy.engines.engines import Engines
from pdx_proxy.engines.probe import page_of

PAUSE_SECONDS: Final = 1.0
"""Between two rounds, varied by a fifth so that several gateways do not poll at the same instant."""
GROWING_SECONDS: Final = 0.1
"""Between two rounds while requests wait for an engine that may be able to run more."""
ANSWER_SECONDS: Final = 1.0
"""Deadline of an engine's answer."""
OLDEST_SECONDS: Final = 5.0
"""How long a report is used if no newer one arrives."""
_CONCURRENT: Final = 16
_log: Final = logging.getLogger(__name__)


def must_publish(old: LoadReports, new: LoadReports) -> bool:
    """Whether workers need the new reports: always, unless all engines were and are idle.

    Equal numbers of busy engines are published too: each worker compares them with what it has sent by then.
    """
    return new != old or any(each.running or each.waiting or each.kv_use for each in new.engines.values())


class LoadPoller:
    """Owner of the load reports."""

    def __init__(
        self,
        engines: Engines,
        snapshot: Callable[[], Snapshot],
        publish: Callable[[], None],
        waiting: Callable[[], int] = lambda: 0,
        rng: random.Random | None = None,
    ) -> None:
        self._engines = engines
        self._waiting = waiting
        """Returns the number of requests that wait in the gateway."""
        self._estimators: dict[tuple[str, int], LimitEstimator] = {}
        """By name and generation of the endpoint."""
        self._limits: dict[tuple[str, int], EngineLimit] = {}
        self._snapshot = snapshot
        self._publish = publish
        """Called after each change of `reports`."""
        self._random = rng or random.Random()  # noqa: S311 (spreads load)
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._found: dict[tuple[str, int], tuple[float, LoadReport]] = {}
        """The last report and its time, by name and generation of the endpoint."""
        self._task: asyncio.Task[None] | None = None
        self.reports = LoadReports()

    def start(self) -> None:
        """Start to poll."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.poll_all()
            except Exception:
                _log.exception("Polling the engines' load failed.")
            await self._pause(PAUSE_SECONDS * self._random.uniform(0.8, 1.2))

    async def _pause(self, seconds: float) -> None:
        """Sleep until the next round: a short time while requests wait for engines that may be able to run more."""
        clock = self._engines.clock
        ends = clock() + seconds
        while (remaining := ends - clock()) > 0:
            await asyncio.sleep(min(remaining, GROWING_SECONDS))
            if self._waiting() and any(limit.grows for limit in self.reports.limits.values()):
                return

    async def poll_all(self) -> None:
        """Poll every engine once."""
        by_address: dict[Address, list[Endpoint]] = {}
        for endpoint in self._snapshot().everything:
            if endpoint.warm:
                by_address.setdefault(endpoint.address, []).append(endpoint)
        await asyncio.gather(*map(self._poll, by_address.values()))
        self._update({(e.name, e.generation) for ranks in by_address.values() for e in ranks})

    async def _poll(self, ranks: list[Endpoint]) -> None:
        """Read one engine's page for all its ranks. Without an answer the last reports stay."""
        async with self._slots:
            page = await page_of(self._engines, ranks[0], "/metrics", ANSWER_SECONDS)
        now = self._engines.clock()
        for endpoint in ranks:
            report = read_load(page, endpoint.spec.rank)
            if report is not None:
                key = endpoint.name, endpoint.generation
                self._found[key] = (now, report)
                estimator = self._estimators.get(key)
                if estimator is None:
                    work = Work.PREFILL if endpoint.role is Role.PREFILL else Work.DECODE
                    estimator = self._estimators[key] = LimitEstimator(work)
                self._limits[key] = estimator.update(read_sample(page, report, now, endpoint.spec.rank))

    def _update(self, polled: set[tuple[str, int]]) -> None:
        oldest = self._engines.clock() - OLDEST_SECONDS
        self._found = {key: entry for key, entry in self._found.items() if key in polled and entry[0] > oldest}
        self._estimators = {key: each for key, each in self._estimators.items() if key in polled}
        self._limits = {key: limit for key, limit in self._limits.items() if key in self._found}
        engines = {name: report for (name, _), (_, report) in self._found.items()}
        limits = {name: limit for (name, _), limit in self._limits.items()}
        reports = LoadReports(engines, limits, frozenset(name for name, _ in polled) - engines.keys())
        if must_publish(self.reports, reports):
            self.reports = reports
            self._publish()
